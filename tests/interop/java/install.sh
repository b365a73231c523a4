#!/bin/sh
# How does the Java KCL get onto this machine?
#
# Its jars come out of a wheel on PyPI, into .servers/kcl at the repository root (git-ignored). It runs on Java 8 or newer;
# where there is none and apt may be used, Debian's headless JRE is installed. Without Java this ends with an error: nothing
# that needs the KCL may pass by not running. A second run does nothing. PYTHON names another interpreter.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
kcl=$(CDPATH='' cd -- "$here/../../.." && pwd)/.servers/kcl
python=${PYTHON:-python3}

refuse() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

install_java() {
    command -v apt-get >/dev/null 2>&1 || refuse "java is missing: install a JRE, version 8 or newer, and put it on the PATH"
    [ "$(id -u)" = 0 ] || refuse "java is missing: run apt-get install default-jre-headless as root, or put a JRE on the PATH"
    echo "Installing a Java runtime"
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends default-jre-headless >/dev/null ||
        refuse "java is missing, and apt-get could not install default-jre-headless (apt-get update may help)"
    java -version >/dev/null 2>&1 || refuse "default-jre-headless was installed, but java does not run"
}

install_jars() {
    command -v "$python" >/dev/null 2>&1 || refuse "$python is missing: set PYTHON to a Python 3.11 or newer"
    echo "Installing the Java KCL into .servers/kcl"
    rm -rf "$kcl"
    mkdir -p "$kcl/wheel"
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$kcl/wheel" -r "$here/requirements.txt"
    "$python" -c 'import glob, sys, zipfile
[wheel] = glob.glob(sys.argv[1] + "/wheel/*.whl")
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(sys.argv[1], [name for name in archive.namelist() if name.endswith(".jar")])' "$kcl"
    rm -r "$kcl/wheel"
    ls "$kcl"/amazon_kclpy/jars/amazon-kinesis-client-multilang-*.jar >/dev/null || refuse "the wheel has no jars"
    cp "$here/requirements.txt" "$kcl/.stamp"
}

java -version >/dev/null 2>&1 || install_java
cmp -s "$here/requirements.txt" "$kcl/.stamp" || install_jars
