"""The web page at `/`: static files of our own, which ask the admin side and the calls' endpoints like any client."""
