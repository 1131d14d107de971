//! The one container image of the node: a static busybox, packed by hand.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::Bed;

/// Name of the image. Without a command a container of it does nothing until it is stopped, which is what the sandbox
/// of a pod does.
pub const IMAGE: &str = "bowline.io/testbed/busybox:1";

const IDLE_SCRIPT: &str = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done";

/// Packs `busybox` as an image archive that `ctr images import` accepts.
pub(super) fn pack(busybox: &Path, archive: &Path) -> io::Result<()> {
    let layer = layer(busybox)?;
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {"Entrypoint": ["/bin/sh", "-c", IDLE_SCRIPT], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer))]},
    })
    .to_string();
    let config_name = format!("{}.json", sha256(config.as_bytes()));
    let manifest = json!([{"Config": config_name, "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
    let mut tar = tar::Builder::new(File::create(archive)?);
    append(&mut tar, &config_name, 0o644, config.as_bytes())?;
    append(&mut tar, "layer.tar", 0o644, &layer)?;
    append(&mut tar, "manifest.json", 0o644, manifest.to_string().as_bytes())?;
    tar.finish()
}

/// Imports the archive into containerd; `None` while containerd does not answer.
pub(super) fn import(bed: &Bed, ctr: &Path, socket: &Path, archive: &Path) -> Option<()> {
    let mut command = Command::new(ctr);
    command
        .arg("--address")
        .arg(socket)
        .args(["--connect-timeout", "5s", "--timeout", "30s"])
        .args(["--namespace", "k8s.io", "images", "import"])
        .arg(archive)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    bed.spawn(command).ok()?.wait().ok()?.success().then_some(())
}

fn layer(busybox: &Path) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    append(&mut tar, "bin/busybox", 0o755, &std::fs::read(busybox)?)?;
    let applets = Command::new(busybox).arg("--list").stdin(Stdio::null()).output()?.stdout;
    for applet in String::from_utf8_lossy(&applets).lines().filter(|&name| name != "busybox") {
        let mut link = tar::Header::new_gnu();
        link.set_entry_type(tar::EntryType::Symlink);
        link.set_size(0);
        link.set_mode(0o777);
        tar.append_link(&mut link, format!("bin/{applet}"), "busybox")?;
    }
    append(&mut tar, "etc/passwd", 0o644, b"root:x:0:0:root:/:/bin/sh\n")?;
    let mut tmp = tar::Header::new_gnu();
    tmp.set_entry_type(tar::EntryType::Directory);
    tmp.set_size(0);
    tmp.set_mode(0o1777);
    tar.append_data(&mut tmp, "tmp/", io::empty())?;
    tar.into_inner()
}

fn append(
    tar: &mut tar::Builder<impl Write>,
    path: &str,
    mode: u32,
    bytes: &[u8],
) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(mode);
    tar.append_data(&mut header, path, bytes)
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Architecture as container images spell it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
