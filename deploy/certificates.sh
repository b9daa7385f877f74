#!/bin/sh
# Makes the certificates of the local stack, unless there are some that are good for a month: a directory for each of
# those who show one, with certificate.pem and key.pem, and ca.pem, which says whom to trust. The key of the authority is
# thrown away, so nobody can issue more; what expires is replaced, authority and all.
#
# sh certificates.sh DIRECTORY    (which holds the directories scheduler, executor and client)
set -eu
umask 077
cd "$1"

is_good() {
  for holder in scheduler executor client; do
    openssl x509 -in "$holder/certificate.pem" -checkend 2592000 -noout >/dev/null 2>&1 &&
      openssl verify -CAfile scheduler/ca.pem "$holder/certificate.pem" >/dev/null 2>&1 || return 1
  done
}

# issue HOLDER NAMES: what one holder shows, to those who ask it and to those whom it asks.
issue() {
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -subj "/CN=$1" \
    -keyout "$scratch/$1.key" -out "$scratch/$1.request" 2>/dev/null
  printf 'basicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=%s\n' "$2" \
    >"$scratch/$1.extensions"
  openssl x509 -req -in "$scratch/$1.request" -extfile "$scratch/$1.extensions" -days 365 \
    -CA "$scratch/ca.pem" -CAkey "$scratch/ca.key" -CAcreateserial -out "$scratch/$1.pem" 2>/dev/null
}

if is_good; then
  echo "certificates: kept, good until $(openssl x509 -in scheduler/certificate.pem -noout -enddate | cut -d= -f2)"
  exit
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 365 \
  -subj "/CN=Metronome local stack" -keyout "$scratch/ca.key" -out "$scratch/ca.pem" 2>/dev/null
issue scheduler DNS:scheduler-1,DNS:scheduler-2,DNS:localhost,IP:127.0.0.1
issue executor DNS:executor-1,DNS:executor-2,DNS:localhost,IP:127.0.0.1
issue client DNS:client
for holder in scheduler executor client; do
  cp "$scratch/$holder.key" "$holder/key.pem"
  cp "$scratch/ca.pem" "$holder/ca.pem"
  cp "$scratch/$holder.pem" "$holder/certificate.pem"
done
echo "certificates: made, good for a year"
