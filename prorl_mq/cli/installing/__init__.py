"""`prorl-mq install-tools`: what a service uses beside Python packages, installed as a plain user."""
