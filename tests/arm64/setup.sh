#!/usr/bin/env bash
# Builds a Python for 64-bit ARM that runs under qemu on this x86-64 machine, with the packages of the kernel tests.
#
#   tests/arm64/setup.sh FOLDER       needs root, apt and pip; changes nothing outside of FOLDER
#   FOLDER/python -m pytest ...       NUMBA_CPU_NAME selects the CPU to compile for, QEMU_CPU the CPU to emulate
set -euo pipefail

folder=$(realpath -m "$1")
final=$folder
folder=$final.making
rm -rf "$folder"
mkdir -p "$folder"/{system,packages,apt/lists/partial,apt/archives/partial}
cd "$folder"

# Download Debian's arm64 packages and unpack them without installing. A separate package database keeps them out of
# the system's own.
touch apt/status
cat > apt/config <<CONFIG
APT { Architecture "arm64"; Architectures { "arm64"; }; Install-Recommends "false"; Sandbox::User "root"; }
Dir::State::lists "$folder/apt/lists";
Dir::State::status "$folder/apt/status";
Dir::Cache::archives "$folder/apt/archives";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
CONFIG
apt_arm64() { APT_CONFIG=$folder/apt/config apt-get -qq "$@"; }
apt_arm64 update
apt_arm64 install --yes --download-only python3-minimal libpython3-stdlib libstdc++6 zlib1g
for package in apt/archives/*.deb; do dpkg-deb --extract "$package" system; done
version=$(ls system/usr/bin | grep --max-count=1 --extended-regexp '^python3\.[0-9]+$')

# SME2 needs qemu 10.1, which the backports of Debian 13 have. Its program is static, so that other releases can run it.
options=(-qq -o APT::Sandbox::User=root)
backports=(-o "Dir::Etc::sourcelist=$folder/apt/backports.list" -o Dir::Etc::sourceparts=/dev/null
  -o "Dir::State::lists=$folder/apt/backports" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep --max-count=1 '/debian/$' || true)
mkdir -p apt/backports/partial
echo "deb $uri trixie-backports main" > apt/backports.list
if [ -n "$uri" ] && apt-get "${options[@]}" "${backports[@]}" update; then
  options+=("${backports[@]}") package=qemu-user emulator=./usr/bin/qemu-aarch64
else
  package=qemu-user-static emulator=./usr/bin/qemu-aarch64-static
fi
(cd apt && apt-get "${options[@]}" download "$package")
# tar ends after this file. The rest, most of the time to decompress the package, has no reader.
tar --extract --occurrence "$emulator" < <(dpkg-deb --fsys-tarfile apt/"$package"_*.deb 2> /dev/null)
mv "$emulator" qemu
rm -r usr apt

platforms=()
for glibc in 2_28 2_27 2_17; do platforms+=(--platform "manylinux_${glibc}_aarch64"); done
python3 -m pip install -q --no-deps --no-compile --target packages --only-binary=:all: --root-user-action=ignore \
  --python-version "${version#python}" "${platforms[@]}" --platform manylinux2014_aarch64 --platform any \
  numba llvmlite numpy gguf pyyaml tqdm requests filelock platformdirs psutil typing_extensions \
  pytest iniconfig packaging pluggy pygments

# Byte code of the same Python version, which takes long to compile under emulation.
if command -v "$version" > /dev/null; then
  "$version" -m compileall -q -x '/(tests?|lib2to3|distutils)/' packages "system/usr/lib/$version"
fi

# sys.executable must be this script, so that child processes are emulated too.
cat > python <<PYTHON
#!/usr/bin/env bash
export PYTHONHOME=$final/system/usr PYTHONPATH=\${PYTHONPATH:+\$PYTHONPATH:}$final/packages PYTHONNOUSERSITE=1
exec $final/qemu -0 "\$0" -L $final/system $final/system/usr/bin/$version "\$@"
PYTHON
chmod +x python
rm -rf "$final"
mv "$folder" "$final"
