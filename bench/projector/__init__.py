"""What the mirror for rq-dashboard costs, how far it lags, and whether its pages stand 100,000 jobs."""
