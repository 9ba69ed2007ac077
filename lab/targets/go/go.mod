module ringlab/targets/go

go 1.18
