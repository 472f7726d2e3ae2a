//! The commands of `docs/RECIPES.md`, as they stand there. The names in them lead to servers of the test.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::lab::{Lab, PAGEWIRE, Running, V4, run, text};

const RECIPES: &str = include_str!("../../../../../../docs/RECIPES.md");

const NAMES: [&str; 9] = [
    "github.com",
    "pypi.org",
    "files.pythonhosted.org",
    "registry.npmjs.org",
    "proxy.golang.org",
    "sum.golang.org",
    "index.crates.io",
    "static.crates.io",
    "db.example.org",
];

/// A laboratory with a server that has all names, each with files in `www/NAME`.
struct World {
    lab: Lab,
    _server: Running,
}

impl World {
    fn new(needs: &[&str]) -> Option<Self> {
        let lab = Lab::new(&[&["nginx", "openssl", "curl"], needs].concat())?;
        let dir = lab.dir.path().display().to_string();
        let names: Vec<String> = NAMES.iter().map(|name| format!("DNS:{name}")).collect();
        let san = format!("subjectAltName={}", names.join(","));
        let mut make = Command::new("openssl");
        make.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        make.args(["-nodes", "-days", "30", "-subj", "/CN=test", "-addext", &san]);
        run(make.args(["-keyout", "key.pem", "-out", "ca.pem"]).current_dir(&lab.dir));
        let conf = format!(
            "user root; daemon off; master_process off; pid {dir}/pid; error_log {dir}/errors; events {{}}\n\
             http {{ access_log {dir}/access; client_body_temp_path {dir}/a; proxy_temp_path {dir}/b;\n\
             fastcgi_temp_path {dir}/c; uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e;\n\
             types {{ text/html html; application/json json; }}\n\
             server {{ listen {V4}:80; listen {V4}:443 ssl http2; root {dir}/www/$host;\n\
             ssl_certificate {dir}/ca.pem; ssl_certificate_key {dir}/key.pem; }} }}\n"
        );
        std::fs::write(lab.path("conf"), conf).expect("a file");
        let server = lab.server("sh", &["-c", &format!("echo started; exec nginx -c {dir}/conf")]);
        let wait = format!(
            "for i in $(seq 200); do curl -so /dev/null http://{V4}/ && exit 0; sleep 0.05; done; exit 1"
        );
        run(lab.command("sh").args(["-c", &wait]));
        Some(Self { lab, _server: server })
    }

    /// Writes a file, with its folders.
    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.lab.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, content).expect("a file");
    }

    /// Runs a script that prepares files.
    fn make(&self, script: &str) -> String {
        run(Command::new("bash").args(["-euc", script]).current_dir(&self.lab.dir))
    }

    /// Runs a command line, in which `pagewire run` knows the names.
    fn run(&self, line: &str) -> Output {
        let mut options = String::from("--log log");
        for name in NAMES {
            write!(options, " --name {name}={V4}").expect("text");
        }
        let line = line.replace("pagewire run", &format!("{PAGEWIRE} run {options}"));
        let mut command = self.lab.command("env");
        let at = |name: &str| self.lab.path(name).display().to_string();
        command.args(["-u", "PIP_FIND_LINKS", "-u", "CARGO_TARGET_DIR", "-u", "PIP_NO_INDEX"]);
        for (variable, value) in [
            ("SSL_CERT_FILE", at("ca.pem")),
            ("GIT_SSL_CAINFO", at("ca.pem")),
            ("CURL_CA_BUNDLE", at("ca.pem")),
            ("PIP_CONFIG_FILE", "/dev/null".into()),
            ("PIP_INDEX_URL", "https://pypi.org/simple".into()),
            ("PIP_CERT", at("ca.pem")),
            ("REQUESTS_CA_BUNDLE", at("ca.pem")),
            ("PIP_TARGET", at("installed")),
            ("PIP_NO_CACHE_DIR", "1".into()),
            ("PIP_RETRIES", "0".into()),
            ("PIP_DISABLE_PIP_VERSION_CHECK", "1".into()),
            ("npm_config_cafile", at("ca.pem")),
            ("npm_config_audit", "false".into()),
            ("npm_config_registry", "https://registry.npmjs.org/".into()),
            ("npm_config_cache", at("npm-cache")),
            ("npm_config_fetch_retries", "0".into()),
            ("GOPROXY", "https://proxy.golang.org".into()),
            ("GOMODCACHE", at("go-modules")),
            ("GOFLAGS", "-modcacherw".into()),
            ("GONOSUMDB", "example.org".into()),
            ("CARGO_HOME", at("cargo-home")),
            ("CARGO_HTTP_CAINFO", at("ca.pem")),
            ("CARGO_NET_RETRY", "0".into()),
            ("CARGO_NET_OFFLINE", "false".into()),
            ("CONTAINERS_STORAGE_CONF", at("storage.conf")),
            (
                "GIT_SSH_COMMAND",
                format!(
                    "ssh -F none -i {} -o UserKnownHostsFile={} -o StrictHostKeyChecking=accept-new",
                    at("key"),
                    at("known")
                ),
            ),
        ] {
            command.arg(format!("{variable}={value}"));
        }
        command.args(["timeout", "120", "bash", "-c", &line]).output().expect("it runs")
    }

    /// Runs a recipe, which ends well, and before it the same without its permissions, which does not.
    fn cook(&self, title: &str) -> String {
        let line = recipe(title);
        let (front, program) = line.split_once(" -- ").expect("a program");
        assert!(front.contains("--allow"), "{line}");
        let refused = self.run(&format!("pagewire run --allow other.example -- {program}"));
        assert!(!refused.status.success(), "{title}: {}", text(&refused.stdout));
        let done = self.run(&line);
        let said = text(&done.stdout);
        assert!(done.status.success(), "{title}: {said}{}", text(&done.stderr));
        said
    }

    fn has(&self, name: &str) -> bool {
        Path::new(&self.lab.path(name)).exists()
    }
}

/// The first commands below a heading.
fn recipe(title: &str) -> String {
    let (_, rest) = RECIPES.split_once(&format!("\n## {title}\n")).expect("a heading");
    let (_, rest) = rest.split_once("```sh\n").expect("commands");
    rest.split_once("\n```").expect("the end of the commands").0.into()
}

#[test]
fn a_shell_has_what_its_rules_permit() {
    let Some(world) = World::new(&[]) else { return };
    world.write("www/pypi.org/file", "content\n");
    let line = recipe("An agent's shell");
    let shell = |name: &str| format!("echo 'curl -sS https://{name}/file' | {line}");
    assert_eq!(text(&world.run(&shell("pypi.org")).stdout), "content\n");
    let refused = world.run(&shell("registry.npmjs.org"));
    assert!(!refused.status.success());
    let said = text(&refused.stderr);
    assert!(said.contains("--allow registry.npmjs.org"), "{said}");
}

#[test]
fn git_clones_by_https() {
    let Some(world) = World::new(&["git"]) else { return };
    world.make(
        "git init -q a; git -C a -c user.name=n -c user.email=e@example.org commit -q --allow-empty -m one
         mkdir -p www/github.com/owner; git clone -q --bare a www/github.com/owner/hello
         git -C www/github.com/owner/hello update-server-info",
    );
    world.cook("git clone by https");
    assert_eq!(world.make("git -C hello log --format=%s"), "one\n");
}

#[test]
fn git_clones_by_ssh() {
    let Some(world) = World::new(&["git", "ssh", "ssh-keygen", "dropbear", "dropbearkey"]) else {
        return;
    };
    let home = world.lab.path("home").display().to_string();
    world.make(&format!(
        "git init -q a; git -C a -c user.name=n -c user.email=e@example.org commit -q --allow-empty -m one
         mkdir -p -m 700 home/owner home/.ssh; git clone -q --bare a home/owner/hello
         ssh-keygen -q -t ed25519 -N '' -f key; cp key.pub home/.ssh/authorized_keys
         dropbearkey -t ed25519 -f host-key; chmod 711 .
         cat /etc/passwd >passwd; echo git:x:0:0::{home}:/bin/sh >>passwd"
    ));
    // The user exists for the server alone.
    let serve = format!(
        "cd {}; mount --bind passwd /etc/passwd; exec dropbear -F -E -s -r host-key -p {V4}:22 -P pid 2>&1",
        world.lab.dir.path().display()
    );
    let _server = world.lab.server("unshare", &["--mount", "sh", "-ec", &serve]);
    world.cook("git clone by ssh");
    assert_eq!(world.make("git -C hello log --format=%s"), "one\n");
}

#[test]
fn a_browser_shows_a_page() {
    let Some(world) = World::new(&["chromium"]) else { return };
    world.write("www/github.com/owner/file", "content\n");
    // The browser has neither a variable nor an option for a file of authorities.
    let line = recipe("A browser").replace("chromium", "chromium --ignore-certificate-errors");
    let said = world.run(&line);
    assert!(text(&said.stdout).contains("content"), "{}", text(&said.stderr));
    let plain = world.run(&line.replace("ech:", ""));
    assert!(!text(&plain.stdout).contains("content"));
    let told = text(&plain.stderr);
    assert!(told.contains("--allow ech:github.com:443"), "{told}");
}

#[test]
fn pip_installs() {
    let Some(world) = World::new(&["pip3", "python3"]) else { return };
    let wheel = "hello-1.0-py3-none-any.whl";
    world.make(&format!(
        r#"mkdir -p www/files.pythonhosted.org; python3 - <<'END'
import zipfile
info = 'hello-1.0.dist-info/'
with zipfile.ZipFile('www/files.pythonhosted.org/{wheel}', 'w') as z:
    z.writestr('hello.py', 'print("hello")\n')
    z.writestr(info + 'METADATA', 'Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n')
    z.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    z.writestr(info + 'RECORD', 'hello.py,,\n' + ''.join(info + f + ',,\n' for f in ('METADATA', 'WHEEL', 'RECORD')))
END"#
    ));
    let link = format!("<a href=\"https://files.pythonhosted.org/{wheel}\">{wheel}</a>");
    world.write("www/pypi.org/simple/hello/index.html", link);
    world.cook("pip install");
    assert!(world.has("installed/hello.py"));
}

#[test]
fn npm_installs() {
    let Some(world) = World::new(&["npm"]) else { return };
    let at = "www/registry.npmjs.org/hello/-";
    world.write("package/package.json", r#"{"name":"hello","version":"1.0.0"}"#);
    let sum = world.make(&format!(
        "mkdir -p {at}; tar czf {at}/hello-1.0.0.tgz package
         openssl dgst -sha512 -binary {at}/hello-1.0.0.tgz | base64 -w0"
    ));
    let root = r#"{"name":"app","version":"1.0.0","dependencies":{"hello":"1.0.0"}}"#;
    world.write("package.json", root);
    let lock = format!(
        r#"{{"name":"app","version":"1.0.0","lockfileVersion":3,"requires":true,"packages":{{"":{root},
        "node_modules/hello":{{"version":"1.0.0","integrity":"sha512-{sum}",
        "resolved":"https://registry.npmjs.org/hello/-/hello-1.0.0.tgz"}}}}}}"#
    );
    world.write("package-lock.json", lock);
    world.cook("npm ci");
    assert!(world.has("node_modules/hello/package.json"));
}

#[test]
fn go_downloads_modules() {
    let Some(world) = World::new(&["go", "python3"]) else { return };
    let at = "www/proxy.golang.org/example.org/hello/@v";
    let module = "module example.org/hello\n";
    world.write(&format!("{at}/v1.0.0.info"), r#"{"Version":"v1.0.0"}"#);
    world.write(&format!("{at}/v1.0.0.mod"), module);
    world.write("go.mod", "module app\n\ngo 1.19\n\nrequire example.org/hello v1.0.0\n");
    world.make(&format!(
        "python3 - <<'END'
import zipfile
with zipfile.ZipFile('{at}/v1.0.0.zip', 'w') as z:
    z.writestr('example.org/hello@v1.0.0/go.mod', 'module example.org/hello\\n')
    z.writestr('example.org/hello@v1.0.0/hello.go', 'package hello\\n')
END"
    ));
    world.cook("go mod download");
    assert!(world.has("go-modules/example.org/hello@v1.0.0/hello.go"));
}

#[test]
fn cargo_builds() {
    let Some(world) = World::new(&["cargo", "sha256sum"]) else { return };
    let package = "[package]\nname = \"hello\"\nversion = \"1.0.0\"\nedition = \"2021\"\n";
    world.write("hello-1.0.0/Cargo.toml", package);
    world.write("hello-1.0.0/src/lib.rs", "pub fn hello() {}\n");
    let at = "www/static.crates.io/crates/hello/1.0.0";
    let sum = world.make(&format!(
        "mkdir -p {at}; tar czf {at}/download hello-1.0.0; sha256sum <{at}/download | cut -d' ' -f1"
    ));
    let config = r#"{"dl":"https://static.crates.io/crates","api":"https://crates.io"}"#;
    world.write("www/index.crates.io/config.json", config);
    let entry = format!(
        r#"{{"name":"hello","vers":"1.0.0","deps":[],"cksum":"{}","features":{{}},"yanked":false}}"#,
        sum.trim()
    );
    world.write("www/index.crates.io/he/ll/hello", entry + "\n");
    let app = package.replace("hello", "app") + "\n[dependencies]\nhello = \"1\"\n\n[workspace]\n";
    world.write("Cargo.toml", app);
    world.write("src/main.rs", "fn main() { hello::hello(); }\n");
    world.cook("cargo build");
    assert!(world.has("target/debug/app"));
}

/// A PostgreSQL server that has one row.
const DATABASE: &str = r#"
import socket, struct
def message(kind, body): return kind + struct.pack('>I', len(body) + 4) + body
ready = message(b'Z', b'I')
row = message(b'T', struct.pack('>H', 1) + b'x\0' + struct.pack('>IHIHIH', 0, 0, 23, 4, 0xffffffff, 0)) \
    + message(b'D', struct.pack('>HI', 1, 1) + b'1') + message(b'C', b'SELECT 1\0')
l = socket.create_server(('198.51.100.1', 5432))
print('ready', flush=True)
while True:
    s = l.accept()[0]
    while first := s.recv(999):
        if first[4:8] == b'\x04\xd2\x16\x2f': s.sendall(b'N')
        elif first[4:6] == b'\0\3': s.sendall(message(b'R', bytes(4)) + ready)
        elif first[:1] == b'Q': s.sendall(row + ready)
        elif first[:1] == b'X': break
    s.close()
"#;

#[test]
fn a_database_client_asks() {
    let Some(world) = World::new(&["psql", "python3"]) else { return };
    let _server = world.lab.server("python3", &["-uc", DATABASE]);
    assert_eq!(world.cook("A database client"), "1\n");
}

#[test]
fn bubblewrap_is_within_the_rules() {
    let Some(world) = World::new(&["bwrap"]) else { return };
    world.write("www/github.com/owner/file", "content\n");
    assert_eq!(world.cook("bubblewrap"), "content\n");
}

#[test]
fn bubblewrap_may_be_outside() {
    let Some(world) = World::new(&["bwrap"]) else { return };
    world.write("www/github.com/owner/file", "content\n");
    let line = recipe("Inside of bubblewrap");
    let refused = world.run(&line.replace("github.com --", "other.example --"));
    assert!(!refused.status.success(), "{}", text(&refused.stdout));
    let done = world.run(&line);
    assert_eq!(text(&done.stdout), "content\n", "{}", text(&done.stderr));
}

#[test]
fn buildah_builds() {
    let Some(world) = World::new(&["buildah", "busybox"]) else { return };
    world.write("www/github.com/owner/file", "content\n");
    world.make("cp $(command -v busybox) busybox");
    world.write(
        "Containerfile",
        "FROM scratch\nCOPY busybox /bin/sh\nCOPY busybox /bin/wget\n\
         RUN wget -q -O /file http://github.com/owner/file && while read x; do echo has $x; done </file\n",
    );
    let dir = world.lab.dir.path().display();
    let storage =
        format!("[storage]\ndriver=\"vfs\"\nrunroot=\"{dir}/run\"\ngraphroot=\"{dir}/all\"\n");
    world.write("storage.conf", storage);
    let said = world.cook("buildah");
    assert!(said.contains("has content"), "{said}");
}
