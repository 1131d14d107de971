//! Pages of a journal, which anyone who can write ConfigMaps in the server's namespace can change.
//!
//! Two parts: the data of the pages, as a list of maps of text; and records that are packed into the last page.

use std::collections::BTreeMap;
use std::io::Write as _;

use bowline_server::journal::testing::Pages;
use bowline_store::name::RunUid;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;

use super::parts;

/// Key of packed records.
const PACKED: &str = "packed";

pub(super) fn run(input: &[u8]) {
    let [data, packed] = parts(input);
    let Ok(data) = serde_json::from_slice::<Vec<BTreeMap<String, String>>>(data) else { return };
    let journal = Pages::new(&RunUid::new("0a-1b").expect("a valid uid"), "Backup", "nightly");
    let empty = |number| journal.page(number, &[], false).expect("an empty page");
    let mut pages: Vec<ConfigMap> = data
        .into_iter()
        .enumerate()
        .map(|(number, data)| ConfigMap { data: Some(data), ..empty(number) })
        .collect();
    if let Some(last) = pages.last_mut()
        && !packed.is_empty()
    {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(packed).expect("a list takes all");
        let bytes = ByteString(encoder.finish().expect("a list takes all"));
        last.binary_data = Some([(PACKED.to_owned(), bytes)].into());
    }
    let salvaged = journal.salvage(pages.clone());
    pages.reverse();
    let Ok(records) = journal.read(pages) else { return };
    assert_eq!(records, salvaged, "an intact journal is salvaged whole");
    for is_packed in [false, true] {
        let Some(page) = journal.page(0, &records, is_packed).filter(|_| !records.is_empty())
        else {
            continue;
        };
        let again = journal.read(vec![page]).expect("what we write, we read");
        assert_eq!(again, records);
    }
}
