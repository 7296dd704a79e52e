# Headrace in a container, from the wheels in dist/ (`make wheel`):
#
#   make image                                            # or: docker build --tag headrace .
#   docker run --rm --volume "$PWD/runs:/home/headrace/runs" headrace train --env atari/pong
#
# Build arguments: EXTRAS, what of pyproject.toml is installed beside the core; BASE, any Debian or Ubuntu with Python 3.11 or
# newer; PIP_EXTRA_INDEX_URL, e.g. the index of PyTorch's CPU builds, which are gigabytes smaller than the default for GPUs.
#
# With a GPU: docker run --gpus all. Headrace's own shared memory has no limit but the container's memory; Doom's engines, Ray and
# NCCL use /dev/shm, of which a container has 64 MB: docker run --shm-size 4g.
ARG BASE=debian:trixie-slim
FROM ${BASE}
# Versions of Debian's packages are those of its release.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 headrace

ARG EXTRAS=atari,video,plots
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
# The wheels are installed by their paths: an index cannot put others in their place.
RUN --mount=type=bind,target=/context \
    python3 -m venv /opt/headrace \
 && tag=$(python3 -c "import sys; print('cp311' if sys.version_info < (3, 12) else 'abi3')") \
 && set -- /context/dist/*"-$tag-"*"$(uname -m).whl" \
 && /opt/headrace/bin/pip install --no-cache-dir --constraint /context/constraints.txt "$1[$EXTRAS]" "$2"

ENV PATH=/opt/headrace/bin:$PATH
USER 1000
WORKDIR /home/headrace
ENTRYPOINT ["headrace"]
CMD ["--help"]
