#!/bin/sh
# Runs nvcc and writes its assembler's output about each kernel (registers, stack, spills) into a file.
# Usage: ptxas_report.sh REPORT nvcc ARGUMENTS...
report=$1
shift
"$@" 2> "$report.new"
status=$?
if [ "$status" -eq 0 ]; then
  mv "$report.new" "$report"
else
  cat "$report.new" >&2
  rm -f "$report" "$report.new"
fi
exit "$status"
