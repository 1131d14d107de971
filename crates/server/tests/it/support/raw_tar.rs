//! Archives, valid or not.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use tar::EntryType;

/// A tar file that may have entries which no tar writer creates.
#[derive(Default)]
pub(crate) struct RawTar(pub(crate) Vec<u8>);

impl RawTar {
    pub(crate) fn header(&mut self, path: &str, kind: EntryType, link: &str, size: usize) {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o777);
        header.set_size(size as u64);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
    }

    pub(crate) fn file(&mut self, path: &str, content: impl AsRef<[u8]>) {
        let content = content.as_ref();
        self.header(path, EntryType::Regular, "", content.len());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    /// An object where it belongs.
    pub(crate) fn object(&mut self, resource: &str, object: &Value) {
        let metadata = &object["metadata"];
        let folder = match metadata["namespace"].as_str() {
            None => "cluster".to_owned(),
            Some(namespace) => format!("namespaces/{namespace}"),
        };
        let name = metadata["name"].as_str().unwrap();
        self.file(&format!("resources/{resource}/{folder}/{name}.json"), object.to_string());
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        gzip(&self.0)
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
