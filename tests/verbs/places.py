"""The names of the one job and the one group that most tests here use."""

from prorl_mq.schema.ids import GroupRef, JobRef

JOB = JobRef("acme:r:g:0")
GROUP = GroupRef("acme:r:g")
J = f"job:{JOB}"
G = f"group:{GROUP}"
