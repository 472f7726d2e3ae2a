//! A server of a few commands: GET, SET, INCRBY, PING, and those that a client greets with.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pagewire_simulation::Result;
use pagewire_simulation::net::{TcpListener, TcpStream};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

type Values = Rc<RefCell<BTreeMap<Vec<u8>, Vec<u8>>>>;

/// Serves until it is killed. Values are in memory only.
pub(crate) async fn run() -> Result {
    let listener = TcpListener::bind("0.0.0.0:6379").await?;
    let values = Values::default();
    loop {
        let (stream, _) = listener.accept().await?;
        let values = Rc::clone(&values);
        tokio::task::spawn_local(async move {
            // A broken connection ends with its client.
            let _ = serve(stream, &values).await;
        });
    }
}

async fn serve(stream: TcpStream, values: &Values) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(command) = read_command(&mut stream).await? {
        let answer = answer(&command, &mut values.borrow_mut());
        stream.write_all(&answer).await?;
    }
    Ok(())
}

/// An array of strings: `*2\r\n$3\r\nGET\r\n$1\r\na\r\n`; `None` at the end.
async fn read_command(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<Vec<Vec<u8>>>> {
    let Some(count) = read_number(stream, '*').await? else { return Ok(None) };
    let mut command = Vec::new();
    for _ in 0..count {
        let Some(len) = read_number(stream, '$').await? else { return Ok(None) };
        let mut word = vec![0; len + 2];
        stream.read_exact(&mut word).await?;
        word.truncate(len);
        command.push(word);
    }
    Ok(Some(command))
}

async fn read_number(
    stream: &mut BufReader<TcpStream>,
    sign: char,
) -> std::io::Result<Option<usize>> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let number = line.trim_end().strip_prefix(sign).and_then(|digits| digits.parse().ok());
    number.map(Some).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

fn answer(command: &[Vec<u8>], values: &mut BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<u8> {
    let name = command.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
    match (name.as_slice(), command) {
        (b"PING", _) => b"+PONG\r\n".to_vec(),
        (b"GET", [_, key]) => match values.get(key) {
            Some(value) => [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat(),
            None => b"$-1\r\n".to_vec(),
        },
        (b"SET", [_, key, value]) => {
            values.insert(key.clone(), value.clone());
            b"+OK\r\n".to_vec()
        }
        (b"INCRBY", [_, key, by]) => {
            let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<i64>().ok();
            let before = values.get(key).map_or(Some(0), |text| number(text));
            match before.zip(number(by)) {
                Some((before, by)) => {
                    let sum = before + by;
                    values.insert(key.clone(), sum.to_string().into_bytes());
                    format!(":{sum}\r\n").into_bytes()
                }
                None => b"-ERR value is not an integer\r\n".to_vec(),
            }
        }
        (b"CLIENT" | b"SELECT", _) => b"+OK\r\n".to_vec(),
        _ => b"-ERR unknown command\r\n".to_vec(),
    }
}
