//! The two checksums of the hub: SHA-256 of large files, git's SHA-1 of small ones.

use std::fmt::Write as _;

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::spec::is_hex;

/// A file's checksum, which is also the name of its blob.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Digest {
    /// Of the content: files in large file storage.
    Sha256(String),
    /// Of `blob <length>\0` and the content: what git calls the file.
    Git(String),
}

impl Digest {
    /// From a listing; anything but lower-case hex of the right length could be a path.
    pub(crate) fn sha256(hex: &str) -> Option<Self> {
        is_hex(hex, 64).then(|| Digest::Sha256(hex.into()))
    }

    pub(crate) fn git(hex: &str) -> Option<Self> {
        is_hex(hex, 40).then(|| Digest::Git(hex.into()))
    }

    /// In hexadecimal.
    pub(crate) fn hex(&self) -> &str {
        match self {
            Digest::Sha256(hex) | Digest::Git(hex) => hex,
        }
    }

    /// Starts over a file of `size` bytes.
    pub(crate) fn hasher(&self, size: u64) -> Hasher {
        match self {
            Digest::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Digest::Git(_) => Hasher::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }
}

pub(crate) enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(h) => h.update(bytes),
            Hasher::Git(h) => h.update(bytes),
        }
    }

    pub(crate) fn hex(self) -> String {
        let bytes = match self {
            Hasher::Sha256(h) => h.finalize().to_vec(),
            Hasher::Git(h) => h.finalize().to_vec(),
        };
        bytes.iter().fold(String::new(), |mut hex, b| {
            let _ = write!(hex, "{b:02x}");
            hex
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_git_and_of_sha256sum() {
        let git = Digest::git("ce013625030ba8dba906f756967f9e9ca394464a").unwrap();
        let mut hasher = git.hasher(6);
        hasher.update(b"hel");
        hasher.update(b"lo\n");
        assert_eq!(hasher.hex(), git.hex());
        let sha = Digest::sha256("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03").unwrap();
        let mut hasher = sha.hasher(6);
        hasher.update(b"hello\n");
        assert_eq!(hasher.hex(), sha.hex());
        assert_eq!(Digest::sha256("../../x"), None);
        assert_eq!(Digest::git(&"A".repeat(40)), None);
    }
}
