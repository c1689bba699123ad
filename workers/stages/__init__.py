"""INIT, RUN and EVAL: what a worker does with a job that it holds."""
