"""What a job costs on its way through three stages: here, in other libraries, and at the floor."""
