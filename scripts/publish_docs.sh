#!/usr/bin/env bash
# Publish the documentation of the checkout as a version of the site, on the branch gh-pages of origin:
#   scripts/publish_docs.sh main      as "dev"
#   scripts/publish_docs.sh v0.1.2    as "0.1"; also as "latest", unless there is a tag of a newer version
# Needs the extra docs and mike, which writes the branch and the list for the site's selector of versions.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
reference=${1:?name a branch, or a tag such as v0.1.0}
if [[ $reference =~ ^v([0-9]+\.[0-9]+)\.[0-9]+$ ]]; then
    version=${BASH_REMATCH[1]}
    newest=$(git tag --list 'v*' --sort=-version:refname | sed -n 1p)
    if [ "$reference" = "$newest" ]; then
        mike deploy --push --update-aliases "$version" latest
        mike set-default --push latest
    else
        mike deploy --push "$version"
    fi
else
    mike deploy --push dev
    mike list latest >/dev/null 2>&1 || mike set-default --push dev # until the first release
fi
