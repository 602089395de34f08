# sweepd for a CPU, NVIDIA or AMD GPU; docs/how_to/install.md shows how to run it.
#
#   docker build -t sweepd .                                    CPU
#   docker build -t sweepd:cuda --build-arg BUILD=cuda .        NVIDIA
#   docker build -t sweepd:rocm --build-arg BUILD=rocm .        AMD
#
# The wheels of torch contain the libraries of CUDA or ROCm, so that one slim image serves all three;
# the host needs only the driver.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim

# g++ compiles the CPU kernels; tini passes signals on and reaps processes.
# Versions are those of the base image's Debian release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ tini \
    && rm -rf /var/lib/apt/lists/*

# build of torch: cpu, cuda or rocm
ARG BUILD=cpu
# extras of pyproject.toml, e.g. postgres,mlflow
ARG EXTRAS=""
# a package index for torch; empty: the one of the build
ARG TORCH_INDEX=""
WORKDIR /opt/sweepd
COPY . .
ENV SWEEPD_VENV=/opt/venv PIP_NO_CACHE_DIR=1
RUN SWEEPD_TORCH="$BUILD" SWEEPD_TORCH_INDEX="$TORCH_INDEX" SWEEPD_EXTRAS="$EXTRAS" \
    ./start_vectorized_training.sh --install-only

# Files of volumes belong to this user: `--user` chooses another.
RUN useradd --uid 1000 --create-home sweepd \
    && mkdir -p /sweepd/data /sweepd/runs /sweepd/deployments /sweepd/logs /sweepd/cache \
    && chown -R sweepd:sweepd /sweepd \
    && chmod 1777 /sweepd /sweepd/*
ENV PATH=/opt/venv/bin:$PATH SWEEPD_CACHE_DIR=/sweepd/cache PYTHONUNBUFFERED=1
# As root, whose files every user may load. For all processors: this is not the machine it runs on.
RUN sweepd doctor --compile
USER 1000:1000
WORKDIR /sweepd
VOLUME ["/sweepd/data", "/sweepd/runs", "/sweepd/deployments"]

# 1: a study has trials left but no live worker, or a worker hangs. 2: there is no study (yet).
HEALTHCHECK --interval=2m --timeout=1m --start-period=5m \
    CMD ["sh", "-c", "sweepd status >/dev/null 2>&1 || [ $? -eq 2 ]"]

# SIGTERM (docker stop) ends a worker after the present rollout, with checkpoints of its trials.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tini", "--", "sweepd"]
CMD ["--help"]
