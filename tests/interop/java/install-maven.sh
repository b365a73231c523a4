#!/bin/sh
# Fetches the newest KPL, the newest KCL and the newest KCL 2 from Maven Central, and compiles the programs that use them.
#
# The jars and classes go to .servers/java at the repository root (git-ignored). It needs a JDK, version 17 or newer, and
# Maven; it installs neither. Without them it ends with an error: nothing that needs the KPL may pass by not running. A
# second run does nothing.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
target=$(CDPATH='' cd -- "$here/../../.." && pwd)/.servers/java

for tool in javac mvn; do
    command -v "$tool" >/dev/null 2>&1 || {
        printf 'install-maven.sh: %s is missing: install a JDK (17 or newer) and Maven, for example with apt-get install default-jdk-headless maven\n' "$tool" >&2
        exit 1
    }
done

install_library() {
    cat "$here/$1.xml" "$here/$2.java" | cmp -s - "$target/$1/.stamp" && return
    echo "Installing the $1 into .servers/java/$1"
    rm -rf "${target:?}/$1"
    mkdir -p "$target/$1/classes"
    cp "$here/$1.xml" "$target/$1/pom.xml"
    mvn --quiet --batch-mode --file "$target/$1/pom.xml" dependency:copy-dependencies \
        -DincludeScope=runtime "-DoutputDirectory=$target/$1/jars"
    javac -Xlint:all,-processing -Werror -cp "$target/$1/jars/*" -d "$target/$1/classes" "$here/$2.java"
    cat "$here/$1.xml" "$here/$2.java" >"$target/$1/.stamp"
}

install_library kpl KplClient
install_library kcl KclWorker
install_library kcl2 KclWorker
