"""What a turn of each duty costs, at two sizes of the service."""
