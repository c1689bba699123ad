"""Reads of everything that a namespace holds, page by page, for a judgement of it (`prorl_mq.service.fsck`)."""
