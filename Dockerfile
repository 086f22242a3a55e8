FROM python:3.11-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels .

FROM python:3.11-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels trimtab && rm -r /wheels \
    && useradd --system --create-home --home-dir /var/lib/trimtab trimtab
USER trimtab
ENV STATE_DIRECTORY=/var/lib/trimtab
ENTRYPOINT ["trimtab"]
