//! The index page of a directory that has no `index.html`.

use std::fs::File;
use std::io;

use maud::{DOCTYPE, html};
use rustix::fs::{AtFlags, Dir, FileType, statat};

use crate::http::site::path::{RequestPath, encode_segment};
use crate::limits::MAX_INDEX_ENTRIES;

struct IndexRow {
    name: Vec<u8>,
    kind: FileType,
    len: u64,
}

/// The page for `directory`, which `path` named.
pub(crate) fn page(directory: &File, path: &RequestPath) -> io::Result<String> {
    let (rows, left_out) = entries(directory)?;
    let url = path.as_directory_url();
    let title = percent_encoding::percent_decode_str(&url).decode_utf8_lossy();
    let page = html! {
        (DOCTYPE)
        html {
            head {
                meta charset="utf-8";
                title { (title) }
            }
            body {
                h1 { (title) }
                table {
                    @if url != "/" { tr { td { a href="../" { "../" } } td {} } }
                    @for row in rows {
                        @let slash = if row.kind == FileType::Directory { "/" } else { "" };
                        // "./" keeps a name with a colon from being read as a scheme.
                        @let href = format!("./{}{slash}", encode_segment(&row.name));
                        tr {
                            td { a href=(href) { (String::from_utf8_lossy(&row.name)) (slash) } }
                            td align="right" { @if row.kind == FileType::RegularFile { (row.len) } }
                        }
                    }
                }
                @if left_out > 0 { p { (left_out) " more entries are not shown." } }
            }
        }
    };
    Ok(page.into_string() + "\n")
}

/// Sorted by name, with the count of those beyond the limit.
fn entries(directory: &File) -> io::Result<(Vec<IndexRow>, usize)> {
    let (mut entries, mut left_out) = (Vec::new(), 0);
    for item in Dir::read_from(directory)? {
        let item = item?;
        let name = item.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if entries.len() >= MAX_INDEX_ENTRIES {
            left_out += 1;
            continue;
        }
        // Links are not followed: the index does not reveal where they point.
        let Ok(stat) = statat(directory, item.file_name(), AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let len = u64::try_from(stat.st_size).unwrap_or(0);
        entries.push(IndexRow { name: name.to_vec(), kind, len });
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((entries, left_out))
}
