//! For tests: captured messages of the command line tools.

/// The last datagram that the command sent.
pub(crate) fn sent(file: &str, command: &str) -> Vec<u8> {
    datagrams(file, command, "> ").pop().unwrap()
}

/// What the command read.
pub(crate) fn read(file: &str, command: &str) -> Vec<Vec<u8>> {
    datagrams(file, command, "< ")
}

/// What the command sent (`> `) or read (`< `).
pub(crate) fn datagrams(file: &str, command: &str, direction: &str) -> Vec<Vec<u8>> {
    let title = format!("$ {command}");
    let lines = file.lines().skip_while(|line| *line != title).skip(1).take_while(|line| !line.is_empty());
    let byte = |hex: &[u8]| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap();
    let list: Vec<Vec<u8>> = lines
        .filter_map(|line| line.strip_prefix(direction))
        .map(|hex| hex.as_bytes().chunks(2).map(byte).collect())
        .collect();
    assert!(!list.is_empty(), "{command:?} was not captured");
    list
}
