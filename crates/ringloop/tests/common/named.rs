//! Files with names.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringloop::fs::File;

/// A file for one test, which is removed with it.
pub(crate) struct Named(pub(crate) PathBuf);

impl Named {
    pub(crate) fn new(contents: &[u8]) -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringloop-named-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, contents).unwrap();
        Self(path)
    }

    pub(crate) async fn open(&self) -> File {
        File::open(&self.0).await.unwrap()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}
