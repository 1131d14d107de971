use std::fs;
use std::os::unix::fs::symlink;

use bowline_plugin_sdk::one_line;
use tempfile::TempDir;

use super::*;

/// `root` with volumes and traps, beside `outside`.
struct Place {
    folder: TempDir,
    roots: Roots,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The name of the folder for temporary files may itself be a link.
        let base = folder.path().canonicalize().unwrap();
        for made in
            ["root/vol/inner", "root/.bowline-snapshots/lv-1/data", "root/repo/data", "outside"]
        {
            fs::create_dir_all(base.join(made)).unwrap();
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
        let taken = vec![base.join("root/.bowline-snapshots"), base.join("root/repo")];
        Self { folder, roots: Roots::new(vec![root], taken) }
    }

    fn path(&self, name: &str) -> VolumePath {
        let base = self.folder.path().canonicalize().unwrap();
        base.join(name).to_str().unwrap().parse().unwrap()
    }

    fn open(&self, name: &str) -> Result<Volume, String> {
        self.roots.open(&self.path(name)).map_err(|error| one_line(&error))
    }
}

#[test]
fn only_what_stays_below_a_root_is_opened() {
    let place = Place::new();
    for name in ["root/vol", "root/vol/inner", "root/to-vol"] {
        assert!(place.open(name).is_ok(), "{name}");
    }
    for (name, words) in [
        ("outside", "is not below an allowed root"),
        ("rootless", "is not below an allowed root"),
        ("root", "is a root itself"),
        ("root/out", "leads out of its root"),
        ("root/absolute-out", "leads out of its root"),
        ("root/absolute-in", "leads out of its root"),
        ("root/up-and-down", "leads out of its root"),
        ("root/magic", "leads out of its root"),
        ("root/magic/etc", "leads out of its root"),
        ("root/loop", "leads out of its root"),
        ("root/.bowline-snapshots/lv-1/data", "keeps for itself"),
        ("root/.bowline-restore-x", "keeps for itself"),
        ("root/to-state", "keeps for itself"),
        ("root/repo", "keeps for itself"),
        ("root/repo/data", "keeps for itself"),
        ("root/none", "does not exist"),
        ("root/file", "is not a folder"),
    ] {
        let error = place.open(name).expect_err(name);
        assert!(error.contains(words), "{name}: {error}");
    }
}

#[test]
fn a_volume_that_holds_what_is_ours_is_refused() {
    let place = Place::new();
    let state = place.folder.path().canonicalize().unwrap().join("root/vol/inner/state");
    let root = place.path("root");
    let roots = Roots::new(vec![root], vec![state.clone()]);
    // Before and after it exists.
    for _ in 0..2 {
        let error = roots.open(&place.path("root/vol")).expect_err("it is refused");
        assert!(matches!(error, Refused::Taken { .. }), "{error}");
        fs::create_dir_all(&state).unwrap();
    }
}

#[test]
fn a_link_that_changes_all_the_time_never_leads_out() {
    let place = Place::new();
    let base = place.folder.path().canonicalize().unwrap();
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
            if let Ok(volume) = place.open("root/flip") {
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
fn the_innermost_root_counts_and_a_new_volume_goes_to_the_root_of_the_old_one() {
    let path = |text: &str| text.parse::<VolumePath>().unwrap();
    let roots = Roots::new(vec![path("/a"), path("/a/b"), path("/c")], Vec::new());
    for (volume, root) in [("/a/x", "/a"), ("/a/b/x", "/a/b"), ("/a/bx", "/a"), ("/c/x/y", "/c")] {
        assert_eq!(roots.root_of(&path(volume)).unwrap().0.as_str(), root, "{volume}");
    }
    assert!(matches!(roots.root_of(&path("/a/b")), Err(Refused::IsRoot(_))));
    assert!(matches!(roots.root_of(&path("/ab")), Err(Refused::Outside(_))));

    let place = Place::new();
    let other = place.path("outside");
    let roots = Roots::new(vec![place.path("root"), other.clone()], Vec::new());
    let chosen = |original: Option<&VolumePath>| roots.open_for_new(original).unwrap().path;
    assert_eq!(chosen(Some(&place.path("outside/vol"))), other);
    assert_eq!(chosen(Some(&path("/elsewhere/vol"))), place.path("root"));
    assert_eq!(chosen(None), place.path("root"));
}
