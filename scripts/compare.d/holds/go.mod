module whimbrel/compare/holds

go 1.19
