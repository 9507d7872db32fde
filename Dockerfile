# One image for every process of Lamina: the gateway with its engine, and the MLflow server.
# Models and compiled encoders are part of it: a container needs no package index.
FROM python:3.11-slim AS build
# "cpu" takes torch's CPU build from its own index; "" takes whatever the default index or deploy/wheels offers.
ARG TORCH_BACKEND=cpu
ENV UV_SYSTEM_CERTS=1 UV_LINK_MODE=copy PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
RUN python -m venv /opt/lamina && /opt/lamina/bin/python -m pip install --quiet uv
COPY deploy/wheels/ /wheels/
RUN /opt/lamina/bin/uv pip install --no-cache --python /opt/lamina/bin/python --find-links /wheels \
    ${TORCH_BACKEND:+--torch-backend "$TORCH_BACKEND"} torch==2.13.0
COPY requirements/run.txt requirements/
RUN /opt/lamina/bin/uv pip install --no-cache --python /opt/lamina/bin/python --no-deps --require-hashes \
    -r requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY orchestration orchestration
COPY backends backends
COPY cache cache
COPY validators validators
COPY logging_layer logging_layer
COPY lab lab
COPY gateway gateway
RUN /opt/lamina/bin/uv pip install --no-cache --python /opt/lamina/bin/python --no-deps .
ENV XDG_CACHE_HOME=/opt/models HF_HUB_OFFLINE=1
RUN /opt/lamina/bin/lamina models fetch && chmod -R a+rX /opt/models

FROM python:3.11-slim
# The engine compiles its kernels for the CPU that it meets, once; without a compiler it is a third as fast.
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends g++ >/dev/null && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 1000 lamina && useradd --uid 1000 --gid lamina --home-dir /data lamina \
    && mkdir -p /data && chown lamina:lamina /data
COPY --from=build /opt/lamina /opt/lamina
COPY --from=build --chown=lamina:lamina /opt/models /opt/models
ENV PATH=/opt/lamina/bin:$PATH XDG_CACHE_HOME=/opt/models HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
USER lamina
WORKDIR /data
VOLUME /data
EXPOSE 4000
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=12 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:4000/health/ready', timeout=2)"]
CMD ["lamina", "serve"]
