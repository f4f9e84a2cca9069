//! Failures of an LSM, classified by the remedy.

use std::io;

/// Why a piece of work on a store did not succeed.
#[derive(Debug)]
pub(crate) enum StoreFault<E> {
    Lsm(fjall::Error),
    /// The LSM works; the store returns this error.
    Refused(E),
}

impl<E> From<fjall::Error> for StoreFault<E> {
    fn from(error: fjall::Error) -> Self {
        Self::Lsm(error)
    }
}

impl<E> From<fjall::LsmError> for StoreFault<E> {
    fn from(error: fjall::LsmError) -> Self {
        Self::Lsm(error.into())
    }
}

/// The error of a port that has an engine on an LSM.
pub(crate) trait StoreError {
    /// The store cannot serve now, for this reason.
    fn unavailable(reason: String) -> Self;
}

/// The state of the bytes on disk after a failure of the LSM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// The LSM stopped: the bytes on disk are correct, and opening again helps.
    Passing,
    /// The disk is full: opening again helps when it has space.
    Full,
    /// The device reports errors: opening again may help.
    Device,
    /// The bytes on disk are not the ones that were written: opening again does not help.
    Damage,
}

impl FaultKind {
    pub fn of(error: &fjall::Error) -> Self {
        use fjall::Error;
        match error {
            Error::Io(error) => Self::of_io(error),
            Error::Storage(fjall::LsmError::Io(error)) => Self::of_io(error),
            Error::Poisoned | Error::Locked | Error::KeyspaceDeleted => Self::Passing,
            _ => Self::Damage,
        }
    }

    pub fn of_io(error: &io::Error) -> Self {
        match error.kind() {
            // A file of the store is missing or shorter than it was.
            io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => Self::Damage,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => Self::Device,
            _ => Self::Passing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_passes_a_bad_checksum_does_not() {
        let of_errno = |errno: rustix::io::Errno| FaultKind::of(&fjall::Error::Io(errno.into()));
        assert_eq!(of_errno(rustix::io::Errno::NOSPC), FaultKind::Full);
        assert_eq!(of_errno(rustix::io::Errno::DQUOT), FaultKind::Full);
        assert_eq!(of_errno(rustix::io::Errno::IO), FaultKind::Device);
        assert_eq!(of_errno(rustix::io::Errno::NOENT), FaultKind::Damage);
        assert_eq!(FaultKind::of(&fjall::Error::Poisoned), FaultKind::Passing);
        assert_eq!(FaultKind::of(&fjall::Error::InvalidTrailer), FaultKind::Damage);
        let checksum = fjall::LsmError::InvalidTrailer;
        assert_eq!(FaultKind::of(&checksum.into()), FaultKind::Damage);
    }
}
