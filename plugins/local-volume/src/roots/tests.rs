use std::fs;
use std::os::unix::fs::symlink;

use bowline_plugin_sdk::error_chain;
use tempfile::TempDir;

use super::*;

/// `root` with volumes and traps, beside `outside`.
struct RootsFixture {
    folder: TempDir,
    roots: Roots,
}

impl RootsFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The name of the folder for temporary files may itself be a link.
        let base = folder.path().canonicalize().unwrap();
        for subfolder in
            ["root/vol/inner", "root/.bowline-snapshots/lv-1/data", "root/repo/data", "outside"]
        {
            fs::create_dir_all(base.join(subfolder)).unwrap();
        }
        fs::write(base.join("root/file"), "").unwrap();
        for (link, target) in [
            ("root/to-vol", "vol"),
            ("root/up-and-down", "../root/vol"),
            ("root/out", "../outside"),
            ("root/absolute-out", "/etc"),
            ("root/magic", "/proc/self/root"),
            ("root/loop", "loop"),
            ("root/to-state", ".bowline-snapshots/lv-1/data"),
        ] {
            symlink(target, base.join(link)).unwrap();
        }
        // Absolute, though it stays inside: the kernel cannot know that.
        symlink(base.join("root/vol"), base.join("root/absolute-in")).unwrap();
        let root: VolumePath = base.join("root").to_str().unwrap().parse().unwrap();
        let reserved = vec![base.join("root/.bowline-snapshots"), base.join("root/repo")];
        Self { folder, roots: Roots::new(vec![root], reserved) }
    }

    fn path(&self, name: &str) -> VolumePath {
        let base = self.folder.path().canonicalize().unwrap();
        base.join(name).to_str().unwrap().parse().unwrap()
    }

    fn open(&self, name: &str) -> Result<OpenVolume, String> {
        self.roots.open(&self.path(name)).map_err(|error| error_chain(&error))
    }
}

#[test]
fn only_volumes_below_a_root_are_opened() {
    let fixture = RootsFixture::new();
    for name in ["root/vol", "root/vol/inner", "root/to-vol"] {
        assert!(fixture.open(name).is_ok(), "{name}");
    }
    for (name, words) in [
        ("outside", "is outside of the configured"),
        ("rootless", "is outside of the configured"),
        ("root", "is a root itself"),
        ("root/out", "leaves its root"),
        ("root/absolute-out", "leaves its root"),
        ("root/absolute-in", "leaves its root"),
        ("root/up-and-down", "leaves its root"),
        ("root/magic", "leaves its root"),
        ("root/magic/etc", "leaves its root"),
        ("root/loop", "leaves its root"),
        ("root/.bowline-snapshots/lv-1/data", "is reserved for the plugin"),
        ("root/.bowline-restore-x", "is reserved for the plugin"),
        ("root/to-state", "is reserved for the plugin"),
        ("root/repo", "is reserved for the plugin"),
        ("root/repo/data", "is reserved for the plugin"),
        ("root/none", "does not exist"),
        ("root/file", "is not a directory"),
    ] {
        let error = fixture.open(name).expect_err(name);
        assert!(error.contains(words), "{name}: {error}");
    }
}

#[test]
fn volume_overlapping_own_folders_is_refused() {
    let fixture = RootsFixture::new();
    let state = fixture.folder.path().canonicalize().unwrap().join("root/vol/inner/state");
    let root = fixture.path("root");
    let roots = Roots::new(vec![root], vec![state.clone()]);
    // Before and after it exists.
    for _ in 0..2 {
        let error = roots.open(&fixture.path("root/vol")).expect_err("it is refused");
        assert!(matches!(error, VolumeRefusal::Reserved { .. }), "{error}");
        fs::create_dir_all(&state).unwrap();
    }
}

#[test]
fn racing_symlink_never_escapes_the_root() {
    let fixture = RootsFixture::new();
    let base = fixture.folder.path().canonicalize().unwrap();
    let (link, secret) = (base.join("root/flip"), base.join("outside"));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut flip = 0_u64;
            while !stop.load(relaxed) {
                let spare = base.join("spare");
                let target = if flip.is_multiple_of(2) { "vol" } else { "../outside" };
                symlink(target, &spare).unwrap();
                fs::rename(&spare, &link).unwrap();
                flip += 1;
            }
        });
        let (mut opened, mut escaped) = (0, 0);
        for _ in 0..20_000 {
            if let Ok(volume) = fixture.open("root/flip") {
                opened += 1;
                escaped += u32::from(real_path(volume.as_fd()).unwrap() == secret);
            }
        }
        // Before anything may fail: the other thread ends by it.
        stop.store(true, relaxed);
        assert!(opened > 0, "the link was never seen as it may be");
        assert_eq!(escaped, 0);
    });
}

#[test]
fn innermost_root_wins_and_new_volumes_use_the_originals_root() {
    let path = |text: &str| text.parse::<VolumePath>().unwrap();
    let roots = Roots::new(vec![path("/a"), path("/a/b"), path("/c")], Vec::new());
    for (volume, root) in [("/a/x", "/a"), ("/a/b/x", "/a/b"), ("/a/bx", "/a"), ("/c/x/y", "/c")] {
        assert_eq!(roots.root_of(&path(volume)).unwrap().0.as_str(), root, "{volume}");
    }
    assert!(matches!(roots.root_of(&path("/a/b")), Err(VolumeRefusal::IsRoot(_))));
    assert!(matches!(roots.root_of(&path("/ab")), Err(VolumeRefusal::Outside(_))));

    let fixture = RootsFixture::new();
    let other = fixture.path("outside");
    let roots = Roots::new(vec![fixture.path("root"), other.clone()], Vec::new());
    let chosen = |original: Option<&VolumePath>| roots.open_for_new(original).unwrap().path;
    assert_eq!(chosen(Some(&fixture.path("outside/vol"))), other);
    assert_eq!(chosen(Some(&path("/elsewhere/vol"))), fixture.path("root"));
    assert_eq!(chosen(None), fixture.path("root"));
}
