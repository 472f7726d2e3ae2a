module pagewire.example/pagewire

go 1.22
