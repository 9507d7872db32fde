-- The call log has the database that the image makes; MLflow gets its own.
CREATE DATABASE mlflow;
