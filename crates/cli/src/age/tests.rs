use super::*;

/// Written by the reference implementation of age (v1.2.1), as are all files here. The key was made for this test.
const IDENTITY: &str = "AGE-SECRET-KEY-1U3KRA38FNQVLXZXQ5GJCP9HC5XHHRCZ3CS9DNXZ5KYCV3C84Q7CSS4LV0Q";
const RECIPIENT: &str = "age1munncrq6tvthy5t8wgcmhay78vu3lfzew3g23w68mt74maaghp6sy3st6k";
const TEXT: &[u8] = b"written by age\n";
/// Encrypted with the passphrase `correct horse`.
const WITH_PASSPHRASE: &str = "YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IHNjcnlwdCBXSit0b25wWVVRSEZWVkdGbjRtc1B3IDEwCmZYakVUbmFuM0\
    ZJRFliS284QkcxUkVtRDRBZUI4K0NXUE9uN08rWGxtcHMKLS0tIDFjY3c1U3hOeU5VbXVqak5xNU9Qc3RCandsbHow\
    Z0N6R0dpQWhpZnhLUDQKqVFgTnmqZGi8fpaC2MpOIIUOeW/Kry4dSGVvJrqNCOZPKoXUSuZXQhRCWZms41I=";
/// Encrypted to another recipient, and to `IDENTITY`.
const TO_RECIPIENTS: &str = "YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IFgyNTUxOSByci8wc0J5ZGJsUjN0cVpQTnpZN1c4RGt5ZjB0R3VVZnoyVE\
    pWVnR4OFVRCkRUam4xZ3IrVm8rbktUV2cvamxwdU44SENMVVBpVWtWQUlWZEhaeG1mZmcKLT4gWDI1NTE5IFc5VUtp\
    QWFuVFVOc0VHWmEyYVEwMDhZL2hXU3cybTRtaHB4YmU5SzZWQzAKMXJlV245N28rWTdibWU4RVY2c3dQMkczQVk5Uz\
    lzbEVBbkpjdnB0SVNxNAotLS0gS2R1aU1JZHNkVTZxQUhlTE0yNWpTZ1dZajNINTh5SGljdjFTOVRzMWhIWQqQ6TIv\
    ohnunfeJtKS52xz+lHYkQ8vyT3HUD5IN251wtKJUr4Pbzfxx6F+QiDeL+w==";
const EMPTY: &str = "YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IFgyNTUxOSBadnlRQ3Q2TDR6NVNRTi9mMTMwWFpwdi9XQms5V0wydE1nVH\
    hmQllQUEJnCkdaeUQ5RGpxcnpsalFURU5jR2ttTDNmVGN0MTNmQWQrRnMwazUvQkJ4ZWsKLS0tIDRLSjk3OVYzeSsy\
    N2hnTU9lN1FEUG1hb3E4T2dHdHBYT20xVkJWNE04QlkK/00u84m8uHufeT/Oc9UqHAr8aKLVAzr/W4URvMDNauk=";
/// Another recipient.
const OTHER: &str = "age1dl4tfvt8re9ckpgtqtad84jnxhs9tl4ze0f8e8g246psrvu3cspsrzv0zf";
/// Small work factor, since the tests repeat it often.
const WORK: u8 = 4;

fn bytes(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}

fn test_identities() -> [Identity; 1] {
    [IDENTITY.parse().unwrap()]
}

#[test]
fn files_written_by_age_are_decrypted() {
    let opened =
        decrypt(&bytes(WITH_PASSPHRASE), &DecryptionKey::Passphrase("correct horse")).unwrap();
    assert_eq!(opened.as_slice(), TEXT);
    let opened =
        decrypt(&bytes(TO_RECIPIENTS), &DecryptionKey::Identities(&test_identities())).unwrap();
    assert_eq!(opened.as_slice(), TEXT);
    assert_eq!(
        decrypt(&bytes(EMPTY), &DecryptionKey::Identities(&test_identities())).unwrap().as_slice(),
        b""
    );
    assert_eq!(encryption_kind(&bytes(WITH_PASSPHRASE)), Ok(EncryptionKind::Passphrase));
    assert_eq!(encryption_kind(&bytes(TO_RECIPIENTS)), Ok(EncryptionKind::Recipients));
}

#[test]
fn encrypted_content_of_any_length_is_decrypted_again() {
    let recipients = [OTHER.parse().unwrap(), RECIPIENT.parse().unwrap()];
    for length in [0, 1, 65535, 65536, 65537, 131_072, 200_000] {
        let plain: Vec<u8> = (0..length).map(|place: u32| place.to_le_bytes()[0]).collect();
        let file = encrypt(&plain, &EncryptionKey::Recipients(&recipients)).unwrap();
        let opened = decrypt(&file, &DecryptionKey::Identities(&test_identities())).unwrap();
        assert!(opened.as_slice() == plain.as_slice(), "{length}");
    }
    let file = encrypt(TEXT, &EncryptionKey::Passphrase("secret", WORK)).unwrap();
    assert!(is_age(&file) && !is_age(TEXT));
    assert_eq!(decrypt(&file, &DecryptionKey::Passphrase("secret")).unwrap().as_slice(), TEXT);
}

#[test]
fn wrong_key_and_damaged_file_give_different_errors() {
    let file = encrypt(TEXT, &EncryptionKey::Passphrase("secret", WORK)).unwrap();
    let opened =
        |file: &[u8], unlock: &DecryptionKey<'_>| decrypt(file, unlock).map(|_| ()).unwrap_err();
    assert_eq!(opened(&file, &DecryptionKey::Passphrase("Secret")), Error::WrongPassphrase);
    assert_eq!(
        opened(&file, &DecryptionKey::Identities(&test_identities())),
        Error::NeedsPassphrase
    );
    let sealed = encrypt(TEXT, &EncryptionKey::Recipients(&[OTHER.parse().unwrap()])).unwrap();
    assert_eq!(
        opened(&sealed, &DecryptionKey::Identities(&test_identities())),
        Error::WrongIdentity
    );
    assert_eq!(opened(&sealed, &DecryptionKey::Passphrase("secret")), Error::NeedsIdentity);
    assert_eq!(opened(b"{}", &DecryptionKey::Passphrase("secret")), Error::NotAge);
    let armored = b"-----BEGIN AGE ENCRYPTED FILE-----\n";
    assert_eq!(opened(armored, &DecryptionKey::Passphrase("secret")), Error::Armored);
    let much = String::from_utf8_lossy(&file[..file.len() - 40]).replacen(" 4\n", " 30\n", 1);
    assert_eq!(
        opened(much.as_bytes(), &DecryptionKey::Passphrase("secret")),
        Error::TooMuchWork(30)
    );
}

/// A file that is changed, truncated or extended is never opened and never causes a panic.
#[test]
fn modified_file_is_refused() {
    let plain = vec![7; 70_000];
    let file = encrypt(&plain, &EncryptionKey::Recipients(&[RECIPIENT.parse().unwrap()])).unwrap();
    let identities = test_identities();
    let unlock = DecryptionKey::Identities(&identities);
    let header = file.windows(4).position(|part| part == b"\n---").unwrap() + 60;
    let places = (0..header).chain([file.len() - 1, file.len() - 4000, header + 65_552]);
    for place in places {
        let mut changed = file.clone();
        changed[place] ^= 1;
        assert!(decrypt(&changed, &unlock).is_err(), "{place}");
    }
    for length in
        (0..header + 40).step_by(3).chain([file.len() - 1, header + 65_552, file.len() - 4464])
    {
        assert!(decrypt(&file[..length], &unlock).is_err(), "{length}");
    }
    assert!(decrypt(&[file.as_slice(), b"x"].concat(), &unlock).is_err());
}

#[test]
fn invalid_keys_are_refused() {
    for text in ["", "age1", "age1qqqq", IDENTITY, "AGE", &RECIPIENT[..RECIPIENT.len() - 1]] {
        assert_eq!(text.parse::<Recipient>().map(|_| ()), Err(Error::Recipient), "{text}");
    }
    for text in ["", RECIPIENT, &IDENTITY[1..]] {
        assert_eq!(text.parse::<Identity>().map(|_| ()), Err(Error::Identity), "{text}");
    }
    assert_eq!(format!("{:?}", IDENTITY.parse::<Identity>().unwrap()), "Identity");
    // A point of small order would make the shared secret public.
    let zero = bech32::encode("age", &[0; 32]).parse::<Recipient>().unwrap();
    assert_eq!(encrypt(TEXT, &EncryptionKey::Recipients(&[zero])).unwrap_err(), Error::Recipient);
}
