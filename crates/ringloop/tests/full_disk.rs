//! A full disk, and a process with a limit on the size of files: what was reported as written is in its place, and
//! nothing else is. Runs in its own process, because limits and mounts apply to processes.

mod common;

use std::fs::File as Plain;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use ringloop::Runtime;
use ringloop::fs::{self, File, OpenOptions};

use common::{on_both, pattern};

/// The size of the disk, in bytes.
const ROOM: usize = 1 << 20;

fn main() {
    // SAFETY: SIG_IGN is no function of ours. A write beyond the limit is to fail, not to end the process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let folder = std::env::temp_dir().join(format!("ringloop-full-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    match mount(&folder) {
        Ok(()) => {
            run(&folder, io::ErrorKind::StorageFull);
            println!("test a_small_disk ... ok");
            // SAFETY: the path is a terminated string, which outlives the call.
            unsafe { libc::umount2(c_path(&folder).as_ptr(), libc::MNT_DETACH) };
        }
        Err(error) => eprintln!("left out: a small disk: mounting one is refused ({error})"),
    }
    // Standard output may be a file, too.
    let limit = set_limit(ROOM as libc::rlim_t);
    run(&folder, io::ErrorKind::FileTooLarge);
    set_limit(limit);
    println!("test a_limit_to_the_size_of_files ... ok");
    std::fs::remove_dir_all(folder).unwrap();
}

fn c_path(path: &Path) -> std::ffi::CString {
    std::ffi::CString::new(path.to_str().unwrap()).unwrap()
}

/// Mounts a small file system that nobody else sees.
fn mount(folder: &Path) -> io::Result<()> {
    let check = |result: libc::c_int| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: these take no memory of ours.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let namespaces = if user == 0 {
        libc::CLONE_NEWNS
    } else {
        libc::CLONE_NEWNS | libc::CLONE_NEWUSER
    };
    // SAFETY: takes no memory of ours; there are no other threads yet.
    check(unsafe { libc::unshare(namespaces) })?;
    if user != 0 {
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    }
    let (folder, options) = (c_path(folder), format!("size={ROOM}\0"));
    // SAFETY: all strings are terminated, and outlive the calls.
    unsafe {
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        let (none, null) = (c"none".as_ptr(), std::ptr::null());
        check(libc::mount(none, c"/".as_ptr(), null, flags, null.cast()))?;
        let kind = c"tmpfs".as_ptr();
        check(libc::mount(
            none,
            folder.as_ptr(),
            kind,
            0,
            options.as_ptr().cast(),
        ))
    }
}

/// Limits the size of files that this process writes, and returns the limit from before.
fn set_limit(bytes: libc::rlim_t) -> libc::rlim_t {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel reads and writes one rlimit of ours.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit), 0);
        let before = limit.rlim_cur;
        limit.rlim_cur = bytes;
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
        before
    }
}

/// Checks that a file is the beginning of the pattern; removes it and returns its length.
fn length_of(path: &Path) -> usize {
    let contents = std::fs::read(path).unwrap();
    let expected = pattern(contents.len());
    let wrong = (0..contents.len()).find(|index| contents[*index] != expected[*index]);
    assert_eq!(wrong, None, "the first wrong byte of {}", contents.len());
    std::fs::remove_file(path).unwrap();
    contents.len()
}

fn position(file: &mut File) -> usize {
    file.seek(SeekFrom::Current(0)).unwrap() as usize
}

fn run(folder: &Path, error: io::ErrorKind) {
    let path = folder.join("file");
    on_both(|runtime| {
        whole(runtime, &path, error);
        at_the_position(runtime, &path, error);
        in_pieces(runtime, &path, error);
        at_the_end(runtime, &path, error);
        into_a_shared_position(runtime, &path, error);
    });
}

fn whole(runtime: &mut Runtime, path: &PathBuf, error: io::ErrorKind) {
    runtime.block_on(async {
        let result = fs::write(path, pattern(2 * ROOM)).await;
        assert_eq!(result.unwrap_err().kind(), error);
        assert_eq!(length_of(path), ROOM);
        let file = File::create(path).await.unwrap();
        let (result, buffer) = file.write_all_at(pattern(2 * ROOM), 0).await;
        assert_eq!(result.unwrap_err().kind(), error);
        assert_eq!(buffer.len(), 2 * ROOM);
        assert_eq!(length_of(path), ROOM);
    });
}

fn at_the_position(runtime: &mut Runtime, path: &PathBuf, error: io::ErrorKind) {
    runtime.block_on(async {
        let mut file = File::create(path).await.unwrap();
        let (result, buffer) = file.write_all(pattern(2 * ROOM)).await;
        assert_eq!(result.unwrap_err().kind(), error);
        assert_eq!(position(&mut file), ROOM);
        // What has room again is written over, from where it is asked for.
        file.seek(SeekFrom::Start(100)).unwrap();
        let (result, _) = file.write_all(buffer[100..5000].to_vec()).await;
        result.unwrap();
        assert_eq!(position(&mut file), 5000);
        file.close().await.unwrap();
        assert_eq!(length_of(path), ROOM);

        let mut file = File::create(path).await.unwrap();
        let (count, buffer) = file.write(buffer).await;
        assert_eq!(count.unwrap(), ROOM);
        assert_eq!(position(&mut file), ROOM);
        let (result, _) = file.write(buffer).await;
        assert_eq!(result.unwrap_err().kind(), error);
        assert_eq!(position(&mut file), ROOM);
        assert_eq!(length_of(path), ROOM);
    });
}

fn in_pieces(runtime: &mut Runtime, path: &PathBuf, error: io::ErrorKind) {
    const PIECE: usize = 300_000;
    runtime.block_on(async {
        let contents = pattern(2 * ROOM);
        let mut file = File::create(path).await.unwrap();
        let mut reported = 0;
        for piece in contents.chunks(PIECE) {
            match file.write_all(piece.to_vec()).await.0 {
                Ok(()) => reported += piece.len(),
                Err(failed) => {
                    assert_eq!(failed.kind(), error);
                    break;
                }
            }
            assert_eq!(position(&mut file), reported);
        }
        assert_eq!(reported, ROOM / PIECE * PIECE);
        assert_eq!(length_of(path), ROOM);
    });
}

fn at_the_end(runtime: &mut Runtime, path: &PathBuf, error: io::ErrorKind) {
    runtime.block_on(async {
        std::fs::write(path, pattern(1000)).unwrap();
        let options = OpenOptions::new().read(true).append(true);
        let mut file = options.open(path).await.unwrap();
        let contents = pattern(2 * ROOM);
        let (result, _) = file.write_all(contents[1000..2000].to_vec()).await;
        result.unwrap();
        assert_eq!(position(&mut file), 2000);
        let (count, _) = file.write(contents[2000..].to_vec()).await;
        assert_eq!(count.unwrap(), ROOM - 2000);
        assert_eq!(position(&mut file), ROOM);
        let (result, _) = file.write_all(b"more".to_vec()).await;
        assert_eq!(result.unwrap_err().kind(), error);
        // Nothing is behind what was written.
        let (count, _) = file.read(Vec::with_capacity(10)).await;
        assert_eq!(count.unwrap(), 0);
        file.seek(SeekFrom::Start(500)).unwrap();
        let (count, bytes) = file.read(Vec::with_capacity(10)).await;
        assert_eq!((count.unwrap(), &bytes[..]), (10, &contents[500..510]));
        assert_eq!(position(&mut file), 510);
        assert_eq!(length_of(path), ROOM);
    });
}

/// The position belongs to the open file, whichever descriptor is used.
fn into_a_shared_position(runtime: &mut Runtime, path: &PathBuf, error: io::ErrorKind) {
    runtime.block_on(async {
        let options = Plain::options().read(true).write(true).create(true).clone();
        let mut plain = options.open(path).unwrap();
        let mut file = File::from(plain.try_clone().unwrap());
        let contents = pattern(2 * ROOM);
        let (result, _) = file.write_all(contents[..1000].to_vec()).await;
        result.unwrap();
        io::Write::write_all(&mut plain, &contents[1000..3000]).unwrap();
        let (result, _) = file.write_all(contents[3000..].to_vec()).await;
        assert_eq!(result.unwrap_err().kind(), error);
        assert_eq!(plain.stream_position().unwrap(), ROOM as u64);
        plain.seek(SeekFrom::Start(10)).unwrap();
        let (count, _) = file.read(Vec::with_capacity(20)).await;
        assert_eq!(count.unwrap(), 20);
        let mut next = [0; 5];
        plain.read_exact(&mut next).unwrap();
        assert_eq!(next, contents[30..35]);
        let (count, rest) = file.read_to_end(Vec::new()).await;
        assert_eq!(count.unwrap(), ROOM - 35);
        assert!(rest == contents[35..ROOM]);
        assert_eq!(plain.stream_position().unwrap(), ROOM as u64);
        assert_eq!(length_of(path), ROOM);
    });
}
