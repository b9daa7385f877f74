# The executor service: torch, the packages of the model gemma3-270m, and a C++ compiler for the kernels. Built from the
# root of the repository.
ARG BASE_IMAGE=python:3.11.13-slim-bookworm

FROM ${BASE_IMAGE} AS build
RUN python -m venv /opt/metronome
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# What it depends on first, in layers that a change of code or text leaves alone.
COPY constraints.txt ./
# PyPI's torch for Linux brings CUDA, some gigabytes of it; this index has the same version for the CPU alone. Empty: the
# index that pip uses.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN /opt/metronome/bin/pip install --no-deps --constraint constraints.txt ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} torch
COPY pyproject.toml ./
RUN touch README.md LICENSE && /opt/metronome/bin/pip install --constraint constraints.txt '.[executor,gemma3-270m]'
COPY README.md LICENSE ./
COPY proto/python proto/python
COPY service_shell service_shell
COPY executor_service executor_service
RUN /opt/metronome/bin/pip install --no-deps --force-reinstall .

FROM ${BASE_IMAGE}
# Kernels are compiled for the processor that they run on, which is not known here.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/metronome /opt/metronome
COPY deploy/healthcheck.py /opt/metronome/
# A new volume that is mounted here takes over the owner.
RUN install --directory --owner 10001 --group 10001 /var/cache/metronome
# Progress bars would end up between the lines of the log, which say the same.
ENV PATH=/opt/metronome/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TQDM_DISABLE=1 \
    HF_HUB_DISABLE_PROGRESS_BARS=1 \
    METRONOME_CACHE=/var/cache/metronome \
    HF_HOME=/var/cache/metronome/huggingface \
    METRONOME_EXECUTOR_HOST=0.0.0.0 \
    METRONOME_EXECUTOR_LOG_FORMAT=json
USER 10001:10001
EXPOSE 50052 9102
HEALTHCHECK --start-period=10m CMD ["python", "/opt/metronome/healthcheck.py", "127.0.0.1:50052", "/certificates"]
ENTRYPOINT ["metronome-executor"]
