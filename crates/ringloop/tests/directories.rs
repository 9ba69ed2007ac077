//! Directories, names and links, on both backends.

mod common;

use std::collections::BTreeSet;
use std::future::Future;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ringloop::fs::{self, File, OpenOptions};

use common::{on_both, pattern, poll_times};

/// Runs a body on each backend, with a folder for it that is removed afterwards.
fn each<F: Future<Output = ()>>(test: &str, body: impl Fn(PathBuf) -> F) {
    on_both(|runtime| {
        let name = format!("ringloop-directories-{}-{test}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        runtime.block_on(body(folder.clone()));
        std::fs::remove_dir_all(folder).unwrap();
    });
}

fn kind<T>(result: std::io::Result<T>) -> ErrorKind {
    result.err().expect("an error").kind()
}

#[test]
fn directories_are_created_and_removed() {
    each("created", async |folder: PathBuf| {
        let one = folder.join("one");
        fs::create_dir(&one).await.unwrap();
        assert!(one.is_dir());
        assert_eq!(kind(fs::create_dir(&one).await), ErrorKind::AlreadyExists);
        let deep = one.join("two/three");
        assert_eq!(kind(fs::create_dir(&deep).await), ErrorKind::NotFound);
        for _ in 0..2 {
            fs::create_dir_all(&deep).await.unwrap();
            assert!(deep.is_dir());
        }
        fs::create_dir_all("").await.unwrap();
        fs::create_dir_all("/").await.unwrap();
        assert_eq!(
            kind(fs::remove_dir(&one).await),
            ErrorKind::DirectoryNotEmpty
        );
        fs::remove_dir(&deep).await.unwrap();
        std::fs::write(one.join("file"), "").unwrap();
        assert_eq!(
            kind(fs::create_dir_all(one.join("file")).await),
            ErrorKind::AlreadyExists
        );
        assert_eq!(
            kind(fs::create_dir_all(one.join("file/x")).await),
            ErrorKind::NotADirectory
        );
        assert_eq!(
            kind(fs::remove_dir(one.join("file")).await),
            ErrorKind::NotADirectory
        );
        assert_eq!(kind(fs::create_dir("a\0b").await), ErrorKind::InvalidInput);
        // Whatever links to elsewhere stays there.
        std::fs::create_dir(folder.join("elsewhere")).unwrap();
        std::fs::write(folder.join("elsewhere/file"), "").unwrap();
        fs::symlink(folder.join("elsewhere"), one.join("link"))
            .await
            .unwrap();
        fs::remove_dir_all(&one).await.unwrap();
        assert!(!one.exists() && folder.join("elsewhere/file").exists());
        assert_eq!(kind(fs::remove_dir_all(&one).await), ErrorKind::NotFound);
    });
}

#[test]
fn files_are_renamed_and_removed() {
    each("renamed", async |folder: PathBuf| {
        let (old, new) = (folder.join("old"), folder.join("new"));
        fs::write(&old, "old").await.unwrap();
        fs::write(&new, "new").await.unwrap();
        fs::rename(&old, &new).await.unwrap();
        assert_eq!(fs::read(&new).await.unwrap(), b"old");
        assert_eq!(kind(fs::rename(&old, &new).await), ErrorKind::NotFound);
        std::fs::create_dir(folder.join("directory")).unwrap();
        let onto_directory = fs::rename(&new, folder.join("directory")).await;
        assert_eq!(kind(onto_directory), ErrorKind::IsADirectory);
        assert!(fs::try_exists(&new).await.unwrap() && !fs::try_exists(&old).await.unwrap());
        assert!(kind(fs::try_exists(new.join("below")).await) == ErrorKind::NotADirectory);
        assert_eq!(
            kind(fs::remove_file(&folder).await),
            ErrorKind::IsADirectory
        );
        fs::remove_file(&new).await.unwrap();
        assert_eq!(kind(fs::remove_file(&new).await), ErrorKind::NotFound);
    });
}

#[test]
fn links_are_created_and_read() {
    each("links", async |folder: PathBuf| {
        let (file, hard, soft) = (
            folder.join("file"),
            folder.join("hard"),
            folder.join("soft"),
        );
        fs::write(&file, "text").await.unwrap();
        fs::hard_link(&file, &hard).await.unwrap();
        assert_eq!(
            file.metadata().unwrap().ino(),
            hard.metadata().unwrap().ino()
        );
        assert_eq!(
            kind(fs::hard_link(&file, &hard).await),
            ErrorKind::AlreadyExists
        );
        fs::symlink("file", &soft).await.unwrap();
        assert_eq!(fs::read_link(&soft).await.unwrap(), Path::new("file"));
        assert_eq!(kind(fs::read_link(&file).await), ErrorKind::InvalidInput);
        let real = std::fs::canonicalize(&file).unwrap();
        assert_eq!(fs::canonicalize(&soft).await.unwrap(), real);
        // The link goes, and not the file.
        fs::remove_file(&soft).await.unwrap();
        assert_eq!(fs::read(&hard).await.unwrap(), b"text");
    });
}

#[test]
fn permissions_and_storage_of_files() {
    each("permissions", async |folder: PathBuf| {
        let path = folder.join("file");
        let file = File::create(&path).await.unwrap();
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        fs::set_permissions(&path, mode(0o640)).await.unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o640);
        file.set_permissions(mode(0o600)).await.unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let missing = fs::set_permissions(folder.join("missing"), mode(0o600)).await;
        assert_eq!(kind(missing), ErrorKind::NotFound);

        file.allocate(100, 100_000).await.unwrap();
        assert_eq!(path.metadata().unwrap().len(), 100_100);
        assert!(path.metadata().unwrap().blocks() * 512 >= 100_000);
        assert_eq!(kind(file.allocate(0, 0).await), ErrorKind::InvalidInput);
        assert_eq!(
            kind(file.allocate(u64::MAX, 1).await),
            ErrorKind::FileTooLarge
        );
        let reader = File::open(&path).await.unwrap();
        assert_eq!(
            reader.allocate(0, 1).await.unwrap_err().raw_os_error(),
            Some(libc::EBADF)
        );

        let contents = pattern(300_000);
        fs::write(&path, contents.clone()).await.unwrap();
        fs::set_permissions(&path, mode(0o640)).await.unwrap();
        let copy = folder.join("copy");
        assert_eq!(fs::copy(&path, &copy).await.unwrap(), 300_000);
        assert!(std::fs::read(&copy).unwrap() == contents);
        assert_eq!(copy.metadata().unwrap().mode() & 0o777, 0o640);
        assert_eq!(
            kind(fs::copy(folder.join("missing"), &copy).await),
            ErrorKind::NotFound
        );
    });
}

/// More entries than are read at a time; futures that are dropped lose none.
#[test]
fn directories_are_read() {
    each("read", async |folder: PathBuf| {
        assert!(
            fs::read_dir(&folder)
                .await
                .unwrap()
                .next_entry()
                .await
                .unwrap()
                .is_none()
        );
        let mut expected = BTreeSet::new();
        for number in 0..1000 {
            let name = format!("entry {number}");
            std::fs::write(folder.join(&name), "12345").unwrap();
            expected.insert(name);
        }
        std::fs::create_dir(folder.join("directory")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.join("link")).unwrap();
        let names = expected.clone();
        expected.extend(["directory".to_owned(), "link".to_owned()]);
        for polls in [2, 3, usize::MAX] {
            let mut entries = fs::read_dir(&folder).await.unwrap();
            let mut seen = BTreeSet::new();
            loop {
                let Some(entry) = poll_times(polls, entries.next_entry()).await else {
                    continue;
                };
                let Some(entry) = entry.unwrap() else { break };
                let name = entry.file_name().to_str().unwrap().to_owned();
                assert_eq!(entry.path(), folder.join(&name));
                let kind = entry.file_type().unwrap();
                assert_eq!(kind.is_file(), names.contains(&name));
                assert_eq!(
                    (kind.is_dir(), kind.is_symlink()),
                    (name == "directory", name == "link")
                );
                if name == "entry 7" {
                    assert_eq!(entry.metadata().await.unwrap().len(), 5);
                }
                assert!(seen.insert(name), "an entry came twice");
            }
            assert_eq!(seen, expected);
            assert!(entries.next_entry().await.unwrap().is_none());
        }
        assert_eq!(
            kind(fs::read_dir(folder.join("link")).await),
            ErrorKind::NotFound
        );
        assert_eq!(
            kind(fs::read_dir(folder.join("entry 1")).await),
            ErrorKind::NotADirectory
        );
        let unreadable = OpenOptions::new()
            .read(true)
            .open(folder.join("missing"))
            .await;
        assert_eq!(kind(unreadable), ErrorKind::NotFound);
    });
}
