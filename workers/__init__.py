"""Stage workers: INIT, RUN and EVAL processes, the agent loop, inference and task families."""
