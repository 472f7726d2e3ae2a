//! The index page of a directory that has no `index.html`.

use std::fmt::Write as _;
use std::fs::File;
use std::io;

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
    let (entries, left_out) = entries(directory)?;
    let title =
        escape(&percent_encoding::percent_decode_str(&path.as_directory_url()).decode_utf8_lossy());
    let mut page = format!(
        "<!DOCTYPE html>\n<html><head><meta charset=\"utf-8\"><title>{title}</title></head>\n\
         <body><h1>{title}</h1>\n<table>\n"
    );
    if path.as_directory_url() != "/" {
        page.push_str("<tr><td><a href=\"../\">../</a></td><td></td></tr>\n");
    }
    for entry in entries {
        let slash = if entry.kind == FileType::Directory { "/" } else { "" };
        let size =
            if entry.kind == FileType::RegularFile { entry.len.to_string() } else { String::new() };
        let (href, name) =
            (encode_segment(&entry.name), escape(&String::from_utf8_lossy(&entry.name)));
        // "./" keeps a name with a colon from being read as a scheme.
        let _ = writeln!(
            page,
            "<tr><td><a href=\"./{href}{slash}\">{name}{slash}</a></td><td align=\"right\">{size}</td></tr>"
        );
    }
    page.push_str("</table>\n");
    if left_out > 0 {
        let _ = writeln!(page, "<p>{left_out} more entries are not shown.</p>");
    }
    page.push_str("</body></html>\n");
    Ok(page)
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

pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
