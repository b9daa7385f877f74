"""Where traces go: OpenTelemetry's SDK and its OTLP exporter, which an installation may lack.

The standard variables say where to and how much: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

TRACING_OFF, TRACING_OTLP = "off", "otlp"


class TracingError(Exception):
    """Traces were asked for and cannot be made. The text says what to do."""


def otlp_provider(service_name: str) -> TracerProvider:
    """Makes spans and sends them, in batches, on a thread of its own.

    ``service_name``: where OTEL_SERVICE_NAME says none. Raises TracingError.
    """
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        text = f"--tracing {TRACING_OTLP} needs {error.name}: run `pip install 'metronome-llm[tracing]'`"
        raise TracingError(text) from error
    resource = Resource.create({"service.name": service_name}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
