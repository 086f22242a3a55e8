from trimtab.cli import main

main()
