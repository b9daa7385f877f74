# The scheduler service: NumPy, Numba and gRPC, no torch. Built from the root of the repository.
ARG BASE_IMAGE=python:3.11.13-slim-bookworm

FROM ${BASE_IMAGE} AS build
RUN python -m venv /opt/metronome
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# What it depends on first, in a layer that a change of code or text leaves alone.
COPY constraints.txt pyproject.toml ./
RUN touch README.md LICENSE && /opt/metronome/bin/pip install --constraint constraints.txt .
COPY README.md LICENSE ./
COPY proto/python proto/python
COPY service_shell service_shell
COPY scheduler_service scheduler_service
RUN /opt/metronome/bin/pip install --no-deps --force-reinstall .
# What the planning core compiles lies beside it, so that no container compiles it again (-P: beside the installed one).
RUN /opt/metronome/bin/python -P -m scheduler_service.warm_up

FROM ${BASE_IMAGE}
COPY --from=build /opt/metronome /opt/metronome
COPY deploy/healthcheck.py /opt/metronome/
# New volumes that are mounted here take over the owner.
RUN install --directory --owner 10001 --group 10001 /certificates \
      /certificates/scheduler /certificates/executor /certificates/client
ENV PATH=/opt/metronome/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    METRONOME_SCHEDULER_HOST=0.0.0.0 \
    METRONOME_SCHEDULER_LOG_FORMAT=json
USER 10001:10001
EXPOSE 50051 9101
HEALTHCHECK CMD ["python", "/opt/metronome/healthcheck.py", "127.0.0.1:50051", "/certificates"]
ENTRYPOINT ["metronome-scheduler"]
