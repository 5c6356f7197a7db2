# fdl and flodl[train,hf] on a CPU.
#
#   docker build --tag flodl:cpu .
#   docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/workspace" flodl:cpu train

FROM python:3.12.11-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12.11-slim-bookworm
# A run records its commit. The tag fixes the distribution; packages move with security updates.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/*

# The largest layer by far, and the one that changes least. This index has few versions of the
# packages that torch needs; the next step takes those from the usual index.
COPY constraints.txt /tmp/
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m pip install --no-cache-dir --no-deps --constraint /tmp/constraints.txt \
    --index-url "${TORCH_INDEX}" torch

# The name of the wheel holds the version.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    python -m pip install --no-cache-dir --constraint /tmp/constraints.txt \
    "$(echo /wheels/flodl-*.whl)[train,hf]" \
    && python -m pip check \
    && fdl --version

RUN useradd --uid 1001 --create-home flodl && chmod 1777 /home/flodl
USER 1001
ENV HOME=/home/flodl
WORKDIR /workspace
ENTRYPOINT ["fdl"]
CMD ["--help"]
