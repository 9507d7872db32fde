"""What runs in the next step; it decides and touches no tensor."""
