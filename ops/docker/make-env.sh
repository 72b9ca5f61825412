#!/bin/sh
# Writes .env for docker-compose.yml with fresh random secrets. Refuses to overwrite one: its secrets are in use.
set -eu
umask 077

target=${1:-.env}
if [ -e "$target" ]; then
    echo "$target is there already and is kept. For another: $0 FILE, then docker compose --env-file FILE" >&2
    exit 1
fi

secret() {
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n'
}

{
    echo "# Secrets of this deployment, made at random. Git ignores this file; keep it so."
    for role in PRODUCER CONSUMER COLLECTOR OPS DASHBOARD SCALER; do
        echo "REDIS_${role}_PASSWORD=$(secret)"
    done
    echo "S3_ADMIN_USER=admin"
    echo "S3_ADMIN_PASSWORD=$(secret)"
    echo "S3_ACCESS_KEY=promptmill"
    echo "S3_SECRET_KEY=$(secret)"
    echo "GRAFANA_PASSWORD=$(secret)"
    echo "DASHBOARD_PASSWORD=$(secret)"
    echo "SGLANG_API_KEY=$(secret)"
    echo
    echo "# What to do. docs/deployment.md explains each."
    echo "#PROMPTS=./examples/prompts.jsonl"
    echo "#RUN=demo"
    echo "#CONSUMERS=2"
    echo "#MODELS=./models"
    echo "#MODEL=Qwen3.6-27B"
} > "$target.new"
mv "$target.new" "$target"
echo "$target is written"
