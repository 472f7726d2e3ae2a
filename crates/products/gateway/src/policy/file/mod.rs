//! [`RulesFile`]: rules from files of TOML. Read [`RulesFile::read`] first; [`tables`] knows the keys, [`expand`] makes
//! rules of tables.

mod expand;
#[cfg(test)]
mod file_tests;
mod tables;

use std::fmt::{self, Write};
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::rules::{Rule, Rules};
use crate::limits::{
    RULES_FILE_BYTES, RULES_FILE_DEPTH, RULES_FILE_LOADS, RULES_FILE_MISTAKES, RULES_FILES,
};
use crate::request::Verdict;
use tables::{At, Tables, Text};

/// Rules of a file, and of the files that it includes.
///
/// ```
/// use pagewire_gateway::{Rules, RulesFile};
///
/// let file = RulesFile::parse(
///     r#"
///     [groups]
///     debian = ["deb.debian.org", "security.debian.org"]
///
///     [[allow]]
///     to = ["@debian", "10.1.0.0/16"]
///     ports = [80, 443]
///     comment = "packages"
///     "#,
/// )?;
/// assert_eq!(file.entries().len(), 6);
/// let rules = file.apply(Rules::default());
/// assert!(rules.resolves(&"deb.debian.org".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RulesFile {
    entries: Vec<RulesEntry>,
    files: Vec<PathBuf>,
}

/// A rule of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesEntry {
    /// The rule.
    pub rule: Rule,
    /// The answer to a guest, for a denial; `None`: the entry is a permission.
    pub answer: Option<Verdict>,
    /// The comment of the rule's table.
    pub comment: Option<Arc<str>>,
    /// The place of the text that has the rule's destination, or names its group.
    pub place: Place,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, as it was named.
    pub file: Arc<Path>,
    /// Line and column, in characters, both from 1; `None`: the file as a whole.
    pub position: Option<(usize, usize)>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.display().fmt(f)?;
        self.position.map_or(Ok(()), |(line, column)| write!(f, ":{line}:{column}"))
    }
}

/// A mistake in a file with rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The place.
    pub place: Place,
    /// The reason, in one line.
    pub what: String,
}

impl fmt::Display for Mistake {
    /// As in `rules.toml:3:6: the table lacks 'to'`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// All mistakes of a file with rules and of those that it includes, in the order of their places.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Mistakes {
    mistakes: Vec<Mistake>,
    files: Vec<PathBuf>,
}

impl Mistakes {
    /// The mistakes: one at least, and at most [`RULES_FILE_MISTAKES`](crate::limits::RULES_FILE_MISTAKES).
    pub fn mistakes(&self) -> &[Mistake] {
        &self.mistakes
    }

    /// The files that were read, the first of which is there even if it could not be.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }
}

impl fmt::Display for Mistakes {
    /// A line for each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, mistake) in self.mistakes.iter().enumerate() {
            if n > 0 {
                f.write_char('\n')?;
            }
            mistake.fmt(f)?;
        }
        Ok(())
    }
}

impl RulesFile {
    /// Reads the rules of a file, and of the files that it includes.
    ///
    /// # Errors
    /// All mistakes; files that cannot be read are among them.
    pub fn read(path: &Path) -> Result<Self, Mistakes> {
        Reader::new(&mut load).read(path)
    }

    /// The rules of a text, which includes no files.
    ///
    /// # Errors
    /// As of [`read`](Self::read).
    pub fn parse(text: &str) -> Result<Self, Mistakes> {
        let mut own = Some(text);
        let mut load = |path: &Path| match own.take() {
            Some(text) => Ok((path.to_owned(), text.as_bytes().to_vec())),
            None => Err(io::Error::other("only a file can include others")),
        };
        Reader::new(&mut load).read(Path::new("rules"))
    }

    /// The rules: those of a file in front of those that it includes, and otherwise as they stand in the files.
    pub fn entries(&self) -> &[RulesEntry] {
        &self.entries
    }

    /// The files that were read, the first of which includes the others.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Adds these rules to others, behind which they stand.
    pub fn apply(&self, rules: Rules) -> Rules {
        self.entries.iter().fold(rules, |rules, entry| match entry.answer {
            None => rules.allow(entry.rule.clone()),
            Some(answer) => rules.deny_with(entry.rule.clone(), answer),
        })
    }
}

impl fmt::Display for RulesFile {
    /// A file with the same rules, a table for each, without groups and includes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, RulesEntry { rule, answer, comment, .. }) in self.entries.iter().enumerate() {
            let table = if answer.is_some() { "deny" } else { "allow" };
            let gap = if n > 0 { "\n" } else { "" };
            write!(f, "{gap}[[{table}]]\nto = \"{rule}\"\n")?;
            let answers = tables::ANSWERS.iter();
            let word = answers.filter(|(_, verdict)| *verdict != Verdict::Prohibit);
            if let Some((word, _)) = word.clone().find(|(_, verdict)| Some(*verdict) == *answer) {
                writeln!(f, "answer = \"{word}\"")?;
            }
            if let Some(comment) = comment {
                writeln!(f, "comment = {}", Quoted(comment))?;
            }
        }
        Ok(())
    }
}

/// A text as TOML has it in quotation marks.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => write!(f, "\\u{:04X}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// A file's own path, which all names of it share, and its bytes.
type Loaded = (PathBuf, Vec<u8>);

fn load(path: &Path) -> io::Result<Loaded> {
    let mut bytes = Vec::new();
    // The open of a pipe, which nobody writes to, does not wait.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no regular file"));
    }
    file.take(RULES_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok((fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()), bytes))
}

/// A file that was read.
struct Source {
    name: Arc<Path>,
    own_path: PathBuf,
    text: String,
    tables: Tables,
}

/// Mistakes with their places in the files that are being read.
#[derive(Default)]
struct Found(Vec<(At, String)>);

impl Found {
    fn note(&mut self, at: At, what: impl fmt::Display) {
        if !self.is_full() {
            self.0.push((at, what.to_string()));
        }
    }

    /// Whether further mistakes are not told.
    fn is_full(&self) -> bool {
        self.0.len() >= RULES_FILE_MISTAKES
    }
}

struct Reader<'a> {
    load: &'a mut dyn FnMut(&Path) -> io::Result<Loaded>,
    files: Vec<Source>,
    found: Found,
    /// Number of files that were opened, those that were there already too.
    loads: usize,
}

impl<'a> Reader<'a> {
    fn new(load: &'a mut dyn FnMut(&Path) -> io::Result<Loaded>) -> Self {
        Self { load, files: Vec::new(), found: Found::default(), loads: 0 }
    }

    fn read(mut self, path: &Path) -> Result<RulesFile, Mistakes> {
        self.add(path, None, &mut Vec::new());
        let entries = expand::entries(&self.files, &mut self.found);
        let files = self.files.iter().map(|file| file.name.to_path_buf()).collect();
        let place = |at: At| self.place(at);
        if self.found.0.is_empty() {
            let entries = entries.into_iter().map(|(at, entry)| entry.into_entry(place(at)));
            return Ok(RulesFile { entries: entries.collect(), files });
        }
        let mut found = self.found.0.clone();
        found.sort_by_key(|(at, _)| *at);
        found.dedup();
        let line =
            |what: &str| what.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let mistakes =
            found.iter().map(|(at, what)| Mistake { place: place(*at), what: line(what) });
        Err(Mistakes { mistakes: mistakes.collect(), files })
    }

    /// Reads a file and those that it includes. `from`: the text that includes it.
    fn add(&mut self, path: &Path, from: Option<At>, way: &mut Vec<PathBuf>) {
        let file = self.files.len();
        let whole = At { file, offset: None };
        self.loads += 1;
        if self.loads > RULES_FILE_LOADS {
            let why = format!("there are more than {RULES_FILE_LOADS} includes");
            return self.found.note(from.unwrap_or(whole), why);
        }
        let loaded = (self.load)(path);
        let failed = match &loaded {
            Ok((own_path, _)) if way.contains(own_path) => {
                Some((from.unwrap_or(whole), "the file includes itself".to_owned()))
            }
            // Another file has included it: its rules are there.
            Ok((own_path, _)) if self.files.iter().any(|file| file.own_path == *own_path) => return,
            Ok(_) if way.len() >= RULES_FILE_DEPTH => {
                let why =
                    format!("files include each other over more than {RULES_FILE_DEPTH} steps");
                Some((from.unwrap_or(whole), why))
            }
            Ok(_) if file >= RULES_FILES => {
                Some((from.unwrap_or(whole), format!("more than {RULES_FILES} files are included")))
            }
            Ok(_) => None,
            Err(error) => Some((
                from.unwrap_or(whole),
                match from {
                    Some(_) => format!("{}: {error}", path.display()),
                    None => error.to_string(),
                },
            )),
        };
        let (own_path, bytes) = match (loaded, failed) {
            (Ok(loaded), None) => loaded,
            (_, Some((at, why))) => {
                self.found.note(at, why);
                if from.is_none() {
                    self.push(path, PathBuf::new(), String::new());
                }
                return;
            }
            (Err(_), None) => return,
        };
        if bytes.len() > RULES_FILE_BYTES {
            self.found.note(whole, format_args!("the file has more than {RULES_FILE_BYTES} bytes"));
            return self.push(path, own_path, String::new());
        }
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                self.found
                    .note(At { file, offset: Some(at) }, "the file is not UTF-8 from here on");
                let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
                return self.push(path, own_path, text);
            }
        };
        let tables = Tables::read(file, &text, &mut self.found);
        let includes = tables.includes.clone();
        way.push(own_path.clone());
        self.files.push(Source { name: path.into(), own_path, text, tables });
        for Text { text, at } in includes {
            let base = path.parent().unwrap_or(Path::new(""));
            self.add(&base.join(text), Some(at), way);
        }
        way.pop();
    }

    /// Notes a file that has no tables.
    fn push(&mut self, path: &Path, own_path: PathBuf, text: String) {
        self.files.push(Source { name: path.into(), own_path, text, tables: Tables::default() });
    }

    fn place(&self, at: At) -> Place {
        let Some(source) = self.files.get(at.file) else {
            return Place { file: Path::new("").into(), position: None };
        };
        let position = at.offset.map(|offset| {
            let before = source.text.as_bytes().get(..offset).unwrap_or(source.text.as_bytes());
            let line = before.split(|byte| *byte == b'\n').next_back().unwrap_or_default();
            let lines = before.iter().filter(|byte| **byte == b'\n').count();
            (lines + 1, String::from_utf8_lossy(line).chars().count() + 1)
        });
        Place { file: source.name.clone(), position }
    }
}
