"""Services: requests, answers, and who sends them."""
