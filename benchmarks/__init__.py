"""What is measured, by `make bench`: one table, from the face that users see. Never imported by the product."""
