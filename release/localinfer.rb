# The Homebrew formula of localinfer. `release/build.py` sets the URL and the digest of the source distribution:
#
#   python release/build.py && brew install --formula dist/localinfer.rb
#
# The dependencies are installed as wheels, because numba and llvmlite would need an LLVM of their version to compile.
class Localinfer < Formula
  desc "Local LLM inference in Python: numpy and JIT-compiled kernels"
  url "@URL@"
  sha256 "@SHA256@"
  license all_of: ["MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0"]

  depends_on "python@3.13"

  def install
    system "python3.13", "-m", "venv", libexec
    system libexec/"bin/python", "-m", "pip", "install", "--prefer-binary", "#{buildpath}[serve]"
    bin.install_symlink libexec/"bin/localinfer"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/localinfer --version")
  end
end
