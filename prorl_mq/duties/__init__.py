"""The loops that keep the pipeline moving: in every API process, each under one lease in Redis."""

from prorl_mq.duties.running import running

__all__ = ["running"]
