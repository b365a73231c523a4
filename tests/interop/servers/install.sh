#!/bin/sh
# How do the third-party servers and clients of the tests get onto this machine?
#
# Into .servers/ at the repository root (git-ignored): node/ has kinesis-local, kinesalite and dynalite, python/ is an
# environment with ministack and Valkey, clients/ one with the AWS CLI, aiokpl and async-kinesis, node-clients/ has the AWS
# SDK for JavaScript and the module aws-kinesis-agg. Each part is finished when its stamp equals the file that lists it, so a second run does nothing and
# a changed version is installed again. PYTHON names another interpreter.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
servers=$(CDPATH='' cd -- "$here/../../.." && pwd)/.servers
python=${PYTHON:-python3}

refuse() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

require_node() {
    for tool in node npm; do
        command -v "$tool" >/dev/null 2>&1 ||
            refuse "$tool is missing: install Node.js 18 or newer (with npm), then run this again"
    done
}

install_node_servers() {
    require_node
    echo "Installing kinesis-local, kinesalite and dynalite into .servers/node"
    rm -rf "$servers/node"
    mkdir -p "$servers/node"
    cp "$here/package.json" "$servers/node/package.json"
    # kinesalite's one optional dependency, leveldown, is native code for streams on disk: ours live in memory
    (cd "$servers/node" && npm install --omit=optional --no-audit --no-fund --no-package-lock --loglevel=error)
    (cd "$servers/node" && node -e 'require("kinesalite")({}); require("dynalite")({})') ||
        refuse "kinesalite or dynalite was installed but cannot be loaded"
    cp "$here/package.json" "$servers/node/.stamp"
}

install_node_clients() {
    require_node
    echo "Installing the AWS SDK for JavaScript and aws-kinesis-agg into .servers/node-clients"
    rm -rf "$servers/node-clients"
    mkdir -p "$servers/node-clients"
    cp "$here/package-clients.json" "$servers/node-clients/package.json"
    (cd "$servers/node-clients" && npm install --no-audit --no-fund --no-package-lock --loglevel=error)
    (cd "$servers/node-clients" && node -e 'require("@aws-sdk/client-kinesis"); require("aws-kinesis-agg")') ||
        refuse "the AWS SDK for JavaScript or aws-kinesis-agg was installed but cannot be loaded"
    cp "$here/package-clients.json" "$servers/node-clients/.stamp"
}

# An environment of its own: its name below .servers, the file that lists it, and what it has.
install_python() {
    command -v "$python" >/dev/null 2>&1 || refuse "$python is missing: set PYTHON to a Python 3.11 or newer"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        refuse "$python cannot make virtual environments: install its venv module (Debian: python3-venv)"
    echo "Installing $3 into .servers/$1"
    rm -rf "${servers:?}/$1"
    "$python" -m venv "$servers/$1"
    "$servers/$1/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/$2"
    cp "$here/$2" "$servers/$1/.stamp"
}

cmp -s "$here/package.json" "$servers/node/.stamp" || install_node_servers
cmp -s "$here/package-clients.json" "$servers/node-clients/.stamp" || install_node_clients
cmp -s "$here/requirements.txt" "$servers/python/.stamp" || install_python python requirements.txt "ministack and Valkey"
cmp -s "$here/requirements-clients.txt" "$servers/clients/.stamp" ||
    install_python clients requirements-clients.txt "the AWS CLI, aiokpl and async-kinesis"
