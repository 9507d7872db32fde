"""The semantic cache's data and its fitted scorer: how both were made."""
