//! Writes `../src/generated` from `../proto`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use sha2::{Digest, Sha256};

fn main() -> anyhow::Result<()> {
    let krate = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no parent directory")?;
    let (protos, generated) = (krate.join("proto"), krate.join("src/generated"));

    let mut files: Vec<PathBuf> = fs::read_dir(&protos)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.sort();
    let descriptors = protox::compile(&files, [&protos])?;

    fs::remove_dir_all(&generated).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    fs::create_dir_all(&generated)?;
    tonic_prost_build::configure()
        .bytes(".")
        .btree_map(".")
        .emit_package(true)
        .out_dir(&generated)
        .compile_fds(descriptors)?;

    // A test of the crate compares this with the files.
    let mut sums = String::new();
    for file in files {
        let name = file.file_name().context("no name")?.to_string_lossy().into_owned();
        let sum = hex::encode(Sha256::digest(fs::read(&file)?));
        sums.push_str(&format!("{sum}  {name}\n"));
    }
    fs::write(generated.join("SOURCES.sha256"), sums)?;
    Ok(())
}
