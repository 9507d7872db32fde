"""One record per call, however it ends: spool, SQL, and MLflow as its view."""
